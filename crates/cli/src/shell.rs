//! `completions` and `man`: generated from the declaration of the command line.

use crate::arguments::Arguments;
use crate::output::{Failure, print, unwritable};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::path::Path;
use std::{fs, io};

/// `outboard completions`.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "outboard", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// `outboard man`: the page of the program with one section for each command, and in a directory a page for each command.
pub(crate) fn man(directory: Option<&Path>) -> Result<(), Failure> {
    let mut command = Arguments::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    sections(&command, "", &mut page)?;
    if let Some(directory) = directory {
        let file = directory.join("outboard.1");
        let pages = clap_mangen::generate_to(Arguments::command(), directory);
        return pages.and_then(|()| fs::write(&file, page)).map_err(|error| unwritable(&file, &error));
    }
    print(&String::from_utf8_lossy(&page))
}

/// Writes one section for each command below `parent`: `PEERS`, then `PEERS ADD`.
fn sections(parent: &Command, prefix: &str, page: &mut Vec<u8>) -> io::Result<()> {
    for command in parent.get_subcommands().filter(|command| !command.is_hide_set()) {
        let title = format!("{prefix}{}", command.get_name().to_uppercase());
        let man = clap_mangen::Man::new(command.clone());
        page.extend_from_slice(format!(".SH \"{title}\"\n").as_bytes());
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
        if command.get_after_help().is_some() {
            man.render_extra_section(page)?;
        }
        sections(command, &format!("{title} "), page)?;
    }
    Ok(())
}
