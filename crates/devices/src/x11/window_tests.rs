//! Tests of a window with another size than its picture, with a real server (Xvfb).

use super::display::wait_reply;
use super::tests::{Device, Painter, Server, Viewer, WATCHDOG, colours, noise, picture};
use std::borrow::Cow;
use std::time::Instant;
use wire::formats::video::{Geometry, Header, Kind, PixelFormat, Rectangle, emit_rectangles};
use wire::formats::viewer::Event;
use x11rb_protocol::protocol::xproto::{
    ConfigureWindowAux, ConfigureWindowRequest, GetGeometryReply, GetGeometryRequest,
};

fn rectangle(x: u32, y: u32, width: u32, height: u32) -> Rectangle {
    Rectangle { x, y, width, height }
}

/// A picture whose quarters have one brightness each.
fn quarters(geometry: Geometry, [left_top, right_top, left, right]: [u8; 4]) -> Vec<u8> {
    let (width, height) = (geometry.width() as usize, geometry.height() as usize);
    let row = |left: u8, right: u8| [vec![left; width / 2], vec![right; width / 2]].concat();
    picture(
        geometry,
        &[row(left_top, right_top).repeat(height / 2), row(left, right).repeat(height / 2)].concat(),
    )
}

/// Waits until a part of the screen has one brightness.
fn until_gray(glass: &mut Device, place: Rectangle, gray: u8) {
    let expected = vec![[gray; 3]; (place.width * place.height) as usize];
    glass.until("the brightness", |screen| screen.at(place) == expected);
}

/// Changes the size of the window, as its user does.
fn drag(painter: &mut Painter, (width, height): (u32, u32)) {
    let value_list = Cow::Owned(ConfigureWindowAux::new().width(width).height(height));
    let window = painter.only_window();
    let request = painter.client.send(ConfigureWindowRequest { window, value_list }.serialize());
    painter.done(request);
}

/// Changes the size of the window, and waits until the viewer requests it.
fn resize(painter: &mut Painter, viewer: &mut Viewer, (width, height): (u32, u32)) {
    drag(painter, (width, height));
    viewer.until(&Event::Size { width, height });
}

/// Returns the size of the window.
fn size(painter: &mut Painter) -> (u16, u16) {
    let drawable = painter.only_window();
    let request = painter.client.query(GetGeometryRequest { drawable }.serialize());
    let geometry: GetGeometryReply =
        wait_reply(&mut painter.client, request, Instant::now() + WATCHDOG).unwrap();
    (geometry.width, geometry.height)
}

/// Moves the pointer on the glass, and expects its position in the picture.
fn point(glass: &mut Device, viewer: &mut Viewer, (x, y): (u32, u32), picture: (u32, u32)) {
    glass.push(Event::Pointer { x, y, buttons: 0 });
    viewer.until(&Event::Pointer { x: picture.0, y: picture.1, buttons: 0 });
}

#[test]
fn a_smaller_window_shows_the_whole_picture_and_points_at_its_pixels() {
    let Some(server) = Server::start("640x480x24") else { return };
    let (mut painter, mut glass) = (server.painter(), server.device(",rate=0,delay=0ms,clipboard=no"));
    let mut viewer = server.window_with(",clipboard=no");
    let geometry = Geometry::new(PixelFormat::Gray8, 400, 300).unwrap();
    viewer.show(quarters(geometry, [10, 60, 110, 160])).unwrap();
    until_gray(&mut glass, rectangle(200, 0, 200, 150), 60);
    resize(&mut painter, &mut viewer, (200, 100));
    // A third of the size, 133x100, in the middle. Where two quarters meet, the brightness is between theirs.
    for (place, gray) in [
        (rectangle(0, 0, 33, 100), 0),
        (rectangle(33, 0, 65, 49), 10),
        (rectangle(101, 0, 65, 49), 60),
        (rectangle(33, 51, 65, 49), 110),
        (rectangle(101, 51, 65, 49), 160),
        (rectangle(166, 0, 34, 100), 0),
    ] {
        until_gray(&mut glass, place, gray);
    }
    point(&mut glass, &mut viewer, (33, 0), (0, 0));
    point(&mut glass, &mut viewer, (165, 99), (399, 299));
    point(&mut glass, &mut viewer, (99, 50), (200, 151));
    point(&mut glass, &mut viewer, (199, 50), (399, 151));
    let part = rectangle(300, 200, 60, 60);
    let header = Header { kind: Kind::Rectangles, geometry }.emit();
    viewer.show([&header[..], &emit_rectangles(&[part]), &[200; 3600]].concat()).unwrap();
    until_gray(&mut glass, rectangle(134, 67, 18, 18), 200);
    until_gray(&mut glass, rectangle(101, 51, 31, 49), 160);
    resize(&mut painter, &mut viewer, (500, 400));
    until_gray(&mut glass, rectangle(350, 250, 60, 60), 200);
    until_gray(&mut glass, rectangle(50, 200, 200, 150), 110);
    until_gray(&mut glass, rectangle(0, 0, 500, 50), 0);
    point(&mut glass, &mut viewer, (50 + 123, 50 + 45), (123, 45));
}

/// The screen has answered each step of a drag before it got the next one.
#[test]
fn the_sizes_of_window_and_screen_do_not_circulate() {
    let Some(server) = Server::start("640x480x24") else { return };
    let (mut painter, mut glass) = (server.painter(), server.device(",rate=0,delay=0ms,clipboard=no"));
    let mut viewer = server.window_with(",clipboard=no");
    let show = |viewer: &mut Viewer, (width, height), grays: [u8; 4]| {
        let geometry = Geometry::new(PixelFormat::Gray8, width, height).unwrap();
        viewer.show(quarters(geometry, grays)).unwrap();
    };
    show(&mut viewer, (400, 300), [10; 4]);
    until_gray(&mut glass, rectangle(0, 0, 400, 300), 10);
    drag(&mut painter, (420, 300));
    drag(&mut painter, (440, 300));
    let next_size = |viewer: &mut Viewer| loop {
        if let Some(Event::Size { width, height }) = viewer.event() {
            break (width, height);
        }
    };
    assert_eq!(next_size(&mut viewer), (440, 300), "not each step");
    show(&mut viewer, (420, 300), [20, 20, 30, 30]);
    until_gray(&mut glass, rectangle(10, 0, 420, 150), 20);
    assert_eq!(size(&mut painter), (440, 300), "the window is its user's");
    show(&mut viewer, (440, 300), [40, 50, 60, 70]);
    until_gray(&mut glass, rectangle(220, 150, 220, 150), 70);
    // The screen changes by itself: the window follows, and requests nothing.
    show(&mut viewer, (300, 200), [80, 90, 100, 110]);
    until_gray(&mut glass, rectangle(150, 100, 150, 100), 110);
    assert_eq!(size(&mut painter), (300, 200));
    drag(&mut painter, (350, 250));
    assert_eq!(next_size(&mut viewer), (350, 250));
}

#[test]
fn a_picture_larger_than_the_screen_is_scaled_to_it() {
    let Some(server) = Server::start("320x200x24") else { return };
    let mut glass = server.device(",rate=0,delay=0ms");
    let mut viewer = server.window();
    let geometry = |width, height| Geometry::new(PixelFormat::Gray8, width, height).unwrap();
    for (width, height) in [(640, 400), (960, 600), (640, 400)] {
        viewer.show(quarters(geometry(width, height), [10, 60, 110, 160])).unwrap();
        until_gray(&mut glass, rectangle(0, 0, 159, 99), 10);
        until_gray(&mut glass, rectangle(161, 101, 159, 99), 160);
        point(&mut glass, &mut viewer, (319, 199), (width - 1, height - 1));
        point(&mut glass, &mut viewer, (0, 0), (0, 0));
    }
    // It fits again.
    viewer.show(quarters(geometry(100, 60), [20, 70, 120, 170])).unwrap();
    until_gray(&mut glass, rectangle(50, 30, 50, 30), 170);
    point(&mut glass, &mut viewer, (70, 30), (70, 30));
}

/// Without RENDER the server cannot scale.
#[test]
fn a_server_that_cannot_scale_shows_a_part_of_the_picture() {
    let Some(server) = Server::start_with("320x200x24", &["-extension", "RENDER"]) else { return };
    let mut glass = server.device(",rate=0,delay=0ms");
    let mut viewer = server.window();
    let geometry = Geometry::new(PixelFormat::Bgrx32, 400, 300).unwrap();
    let pixels = noise(geometry.bytes(), 3);
    viewer.show(picture(geometry, &pixels)).unwrap();
    let rows = pixels.chunks_exact(400 * 4).take(200);
    let expected: Vec<_> = rows.flat_map(|row| colours(&row[..320 * 4])).collect();
    glass.until("a part of the picture", |screen| screen.at(rectangle(0, 0, 320, 200)) == expected);
    point(&mut glass, &mut viewer, (319, 199), (319, 199));
}
