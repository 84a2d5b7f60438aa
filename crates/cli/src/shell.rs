//! `completions` and `man`: generated from the declaration of the command line.

use crate::arguments::Arguments;
use crate::output::{Failure, print};
use clap::CommandFactory;
use clap_complete::Shell;

/// `outboard completions`.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "outboard", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// `outboard man`: the page of the program, then one section for each command.
pub(crate) fn man() -> Result<(), Failure> {
    let mut command = Arguments::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for subcommand in command.get_subcommands() {
        let man = clap_mangen::Man::new(subcommand.clone());
        page.extend_from_slice(format!(".SH \"{}\"\n", subcommand.get_name().to_uppercase()).as_bytes());
        man.render_synopsis_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    print(&String::from_utf8_lossy(&page))
}
