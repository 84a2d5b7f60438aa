//! The page of `screen`: a section for each run.

use super::super::page::figure;
use super::super::row::Row;
use crate::provenance::Provenance;
use crate::setting::Failure;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// One figure of one program.
struct Cell {
    network: String,
    content: String,
    quantity: String,
    program: String,
    pixels: u64,
    value: f64,
}

fn cell(row: &Row) -> Cell {
    Cell {
        network: row.param("network"),
        content: row.param("content"),
        quantity: row.param("quantity"),
        program: row.param("program"),
        pixels: row.number("pixels") as u64,
        value: row.ours,
    }
}

/// Returns each value once, in order of appearance.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn head(cells: &[String]) -> String {
    let rule: Vec<String> =
        (0..cells.len()).map(|at| if at == 0 { "---".into() } else { "---:".to_string() }).collect();
    line(cells) + &line(&rule)
}

/// Formats all programs at the largest picture: pictures a second, bytes and processor time a picture.
fn programs(cells: &[&Cell]) -> String {
    let largest = cells.iter().map(|cell| cell.pixels).max().unwrap_or(0);
    let of = |program: &str, quantity: &str| {
        let found = cells
            .iter()
            .rfind(|cell| cell.program == program && cell.quantity == quantity && cell.pixels == largest);
        found.map(|cell| cell.value)
    };
    let shown = |value: Option<f64>| value.map_or("-".into(), figure);
    let mut text =
        head(&["program", "pictures/s", "bytes a picture", "processors, us a picture"].map(String::from));
    for program in distinct(cells.iter().map(|cell| &cell.program)) {
        let Some(us) = of(program, "time between pictures") else { continue };
        let bytes = shown(of(program, "bytes a picture").map(f64::round));
        let cpu = shown(of(program, "processor time a picture"));
        text += &line(&[program.clone(), figure(1e6 / us), bytes, cpu]);
    }
    let ratios: Vec<String> = distinct(cells.iter().map(|cell| &cell.program))
        .into_iter()
        .filter_map(|program| {
            let (times, bytes) = (of(program, "times as fast")?, of(program, "times the bytes")?);
            Some(format!("- {program}: {} times as fast, {} times the bytes\n", figure(times), figure(bytes)))
        })
        .collect();
    text + "\n" + &ratios.concat() + "\n"
}

/// Formats pictures a second by size, for programs with several sizes.
fn sizes(cells: &[&Cell]) -> String {
    let mut sizes = distinct(cells.iter().map(|cell| cell.pixels));
    sizes.sort_unstable();
    if sizes.len() < 2 {
        return String::new();
    }
    let mut header = vec!["pictures/s by pixels".to_string()];
    header.extend(sizes.iter().map(|pixels| figure(*pixels as f64)));
    let mut text = head(&header);
    for program in distinct(cells.iter().map(|cell| &cell.program)) {
        let of = |pixels: &u64| {
            let found = cells.iter().rfind(|cell| {
                cell.program == *program && cell.pixels == *pixels && cell.quantity == "time between pictures"
            });
            found.map(|cell| figure(1e6 / cell.value))
        };
        let found: Vec<Option<String>> = sizes.iter().map(of).collect();
        if found.iter().flatten().count() > 1 {
            let shown = found.into_iter().map(|value| value.unwrap_or("-".into()));
            text += &line(&std::iter::once(program.clone()).chain(shown).collect::<Vec<_>>());
        }
    }
    text + "\n"
}

/// Writes the page of a run, or adds the run to a page. Pictures with more than `pixels` have tables of their own.
pub(super) fn write(
    file: &Path,
    rows: &[Row],
    provenance: &Provenance,
    pixels: usize,
    add: bool,
) -> Result<(), Failure> {
    let failed = |error| format!("cannot write {}: {error}", file.display());
    let mut text = match add {
        true => fs::read_to_string(file).map_err(failed)?,
        false => include_str!("page.md").to_string(),
    };
    // Writing to a string cannot fail.
    let _ = write!(text, "\n## {}\n\n{provenance}\n{}", title(rows), section(rows, pixels));
    Ok(fs::write(file, text.trim_end().to_string() + "\n").map_err(failed)?)
}

/// Names the sizes of a run's pictures.
fn title(rows: &[Row]) -> String {
    let mut pixels: Vec<u64> = distinct(rows.iter().map(|row| row.number("pixels") as u64));
    pixels.sort_unstable();
    match pixels[..] {
        [] => "No pictures".into(),
        [only] => format!("Pictures of {} pixels", figure(only as f64)),
        [first, .., last] => {
            format!("Pictures of {} to {} pixels", figure(first as f64), figure(last as f64))
        }
    }
}

fn section(rows: &[Row], most: usize) -> String {
    let cells: Vec<Cell> = rows.iter().map(cell).collect();
    let mut text = String::new();
    for network in distinct(cells.iter().map(|cell| &cell.network)) {
        let here = cells.iter().filter(|cell| cell.network == *network);
        for content in distinct(here.clone().map(|cell| &cell.content)) {
            let (larger, own): (Vec<&Cell>, Vec<&Cell>) = here
                .clone()
                .filter(|cell| cell.content == *content)
                .partition(|cell| cell.pixels > most as u64);
            if !own.is_empty() {
                let _ =
                    write!(text, "\n### {content}, network {network}\n\n{}{}", programs(&own), sizes(&own));
            }
            for pixels in distinct(larger.iter().map(|cell| cell.pixels)) {
                let own: Vec<&Cell> = larger.iter().filter(|cell| cell.pixels == pixels).copied().collect();
                let shown = figure(pixels as f64);
                let _ =
                    write!(text, "\n### {content}, {shown} pixels, network {network}\n\n{}", programs(&own));
            }
        }
    }
    text
}
