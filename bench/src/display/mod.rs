//! X servers and the programs that show or serve them.

mod canvas;
mod content;
mod programs;

pub(crate) use canvas::Canvas;
pub(crate) use content::{Content, Film, NUMBER_PIXELS, PIXEL_BYTES, number_at};
pub(crate) use programs::{Display, Program, cpu_ns, is_installed};
