//! A camera for experiments: a program that shows a film of 640x480 at 30 pictures a second (`camera.py`), as a device of Outboard.

use crate::programs::{Scratch, run as run_program};
use crate::setting::Failure;
use std::fs;

pub(crate) const WIDTH: usize = 640;
pub(crate) const HEIGHT: usize = 480;
pub(crate) const RATE_HZ: f64 = 30.0;
/// A picture in planes of 4:2:0.
pub(crate) const PICTURE_BYTES: usize = WIDTH * HEIGHT * 3 / 2;
/// Pictures of the film, which repeats.
const FILM_PICTURES: usize = 240;
/// The film: a window moves over a fractal of fine texture, with the noise of a sensor.
const FRACTAL: &str = "mandelbrot=size=1280x960:rate=1:maxiter=300:start_scale=0.6:end_scale=0.6";
const WINDOW: &str =
    "fps=30,crop=640:480:x='320+150*sin(t*0.9)':y='240+120*sin(t*1.3)',noise=alls=3:allf=t,format=yuv420p";
const HEAD: &[u8] = b"FRAME\n";

const CAMERA: &str = include_str!("camera.py");
const MODULE: &str = include_str!("../../../sdk/python/outboard_module.py");

/// Makes the film `film.y4m`, and writes the programs. Returns the pictures.
pub(crate) fn prepare(scratch: &Scratch) -> Result<Vec<Vec<u8>>, Failure> {
    let (still, film) = (scratch.path("still.png"), scratch.path("film.y4m"));
    let count = FILM_PICTURES.to_string();
    run_program("ffmpeg", &["-v", "error", "-y", "-f", "lavfi", "-i", FRACTAL, "-frames:v", "1", &still])?;
    let moving = ["-v", "error", "-y", "-loop", "1", "-i", &still, "-vf", WINDOW, "-frames:v", &count];
    run_program("ffmpeg", &[&moving[..], &["-f", "yuv4mpegpipe", &film]].concat())?;
    for (name, program) in [("camera.py", CAMERA), ("outboard_module.py", MODULE)] {
        fs::write(scratch.path(name), program)?;
    }
    pictures(&film)
}

/// Returns the pictures of a file in YUV4MPEG2.
pub(crate) fn pictures(path: &str) -> Result<Vec<Vec<u8>>, Failure> {
    let bytes = fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let start = bytes.iter().position(|byte| *byte == b'\n').ok_or("the film is empty")? + 1;
    let each = HEAD.len() + PICTURE_BYTES;
    Ok(bytes[start..].chunks_exact(each).map(|picture| picture[HEAD.len()..].to_vec()).collect())
}

/// Writes pictures as YUV4MPEG2.
pub(crate) fn write_film(path: &str, pictures: &[Vec<u8>]) -> Result<(), Failure> {
    let mut bytes = format!("YUV4MPEG2 W{WIDTH} H{HEIGHT} F{RATE_HZ}:1 Ip A1:1 C420jpeg\n").into_bytes();
    for picture in pictures {
        bytes.extend_from_slice(HEAD);
        bytes.extend_from_slice(picture);
    }
    fs::write(path, bytes).map_err(|error| format!("{path}: {error}").into())
}

/// Returns the device for `outboard share`: the camera with the film of [`prepare`], which notes its pictures in `log`.
pub(crate) fn device(scratch: &Scratch, log: &str) -> String {
    let directory = scratch.path("");
    format!("exec:exec python3 {directory}/camera.py {directory} {directory}/film.y4m {log},frame=declared")
}

/// Reads the lines of a log: two numbers each. The camera's log has the number of each picture in the film and its creation time,
/// nanoseconds of the boot clock.
pub(crate) fn log(path: &str) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let (one, other) = line.split_once(' ')?;
        Some((one.parse().ok()?, other.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}
