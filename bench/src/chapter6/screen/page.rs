//! What was measured of screens, as a page: of one run or of several.

use super::super::page::figure;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Pictures with more pixels have a table of their own.
const PIXELS: u64 = (super::SIDE * super::SIDE) as u64;

/// One figure of one program.
struct Cell {
    network: String,
    content: String,
    quantity: String,
    program: String,
    pixels: u64,
    value: f64,
}

fn cell(row: &Value) -> Option<Cell> {
    let text = |name: &str| Some(row["params"][name].as_str()?.to_string());
    Some(Cell {
        network: text("network")?,
        content: text("content")?,
        quantity: text("quantity")?,
        program: text("program")?,
        pixels: row["params"]["pixels"].as_u64()?,
        value: row["ours"].as_f64()?,
    })
}

/// Rows of earlier runs, from files that `--json` wrote.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<Value>, crate::Failure> {
    let read = |file: &PathBuf| -> Result<Vec<Value>, crate::Failure> {
        let wrong = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
        Ok(serde_json::from_str(&text).map_err(|error| wrong(&error))?)
    };
    Ok(files.iter().map(read).collect::<Result<Vec<_>, _>>()?.concat())
}

/// Each once, in the order in which they come.
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

/// All programs at the largest picture: how many a second, how many bytes and how much of the processors each took.
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

/// Pictures a second by size, of programs that were measured at several.
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

/// Writes the page.
pub(super) fn write(file: &Path, rows: &[Value]) -> Result<(), crate::Failure> {
    let cells: Vec<Cell> = rows.iter().filter_map(cell).collect();
    let mut text = include_str!("page.md").to_string();
    for network in distinct(cells.iter().map(|cell| &cell.network)) {
        let here = cells.iter().filter(|cell| cell.network == *network);
        for content in distinct(here.clone().map(|cell| &cell.content)) {
            let (larger, own): (Vec<&Cell>, Vec<&Cell>) =
                here.clone().filter(|cell| cell.content == *content).partition(|cell| cell.pixels > PIXELS);
            // Writing to a string cannot fail.
            if !own.is_empty() {
                let _ =
                    write!(text, "\n## {content}, network {network}\n\n{}{}", programs(&own), sizes(&own));
            }
            for pixels in distinct(larger.iter().map(|cell| cell.pixels)) {
                let own: Vec<&Cell> = larger.iter().filter(|cell| cell.pixels == pixels).copied().collect();
                let shown = figure(pixels as f64);
                let _ =
                    write!(text, "\n## {content}, {shown} pixels, network {network}\n\n{}", programs(&own));
            }
        }
    }
    std::fs::write(file, text.trim_end().to_string() + "\n")
        .map_err(|error| format!("cannot write {}: {error}", file.display()).into())
}
