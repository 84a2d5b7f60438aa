//! The steps in which the pointer moves to a pixel of the pictures.
//!
//! The portal's documentation has the coordinates of the desktop. Mutter takes pixels of the stream, and divides them by the scale of the
//! monitor. The portal before it refuses positions beyond the size in coordinates of the desktop: at scale 2, all but the upper left
//! quarter of the pixels. So the pointer goes to the last position that the portal takes, and from there by a relative step, which is
//! in coordinates of the desktop, and is not checked.
//!
//! During a drag, a program would draw or select on the way. So the pointer then goes by a relative step alone.

use super::compositor::Compositor;

/// A monitor, for the pointer on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Monitor {
    pub(super) compositor: Compositor,
    /// The size in the coordinates of the desktop, if the portal tells.
    pub(super) size: Option<(u32, u32)>,
}

/// A step of the pointer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum PointerStep {
    /// To a position, as the portal takes it.
    To(f64, f64),
    /// By a distance, in coordinates of the desktop.
    By(f64, f64),
}

impl Monitor {
    /// Returns the steps to a pixel of pictures of `width` (0: unknown). `dragged_from` is the pixel of the pointer if a button is down.
    pub(super) fn steps(
        &self,
        (x, y): (u32, u32),
        width: u32,
        dragged_from: Option<(u32, u32)>,
    ) -> Vec<PointerStep> {
        let (x, y) = (f64::from(x), f64::from(y));
        let Some(size) = self.size.filter(|_| width > 0) else { return vec![PointerStep::To(x, y)] };
        // The side of a pixel in the coordinates of the desktop.
        let side = f64::from(size.0) / f64::from(width);
        if self.compositor != Compositor::Mutter {
            return vec![PointerStep::To(x * side, y * side)];
        }
        let last = |length: u32| f64::from(length.saturating_sub(1));
        let taken = (x.min(last(size.0)), y.min(last(size.1)));
        if taken == (x, y) {
            return vec![PointerStep::To(x, y)];
        }
        let by = |from: (f64, f64)| PointerStep::By((x - from.0) * side, (y - from.1) * side);
        match dragged_from {
            Some((from_x, from_y)) => vec![by((from_x.into(), from_y.into()))],
            None => vec![PointerStep::To(taken.0, taken.1), by(taken)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PointerStep::{By, To};
    use super::*;

    fn monitor(compositor: Compositor, size: Option<(u32, u32)>) -> Monitor {
        Monitor { compositor, size }
    }

    /// The position, in coordinates of the desktop, that mutter makes of steps; the portal takes each one.
    fn by_mutter(
        steps: &[PointerStep],
        start: (f64, f64),
        (width, height): (u32, u32),
        scale: f64,
    ) -> (f64, f64) {
        steps.iter().fold(start, |(at_x, at_y), step| match *step {
            To(x, y) => {
                assert!(x < f64::from(width) && y < f64::from(height), "the portal refuses {x}, {y}");
                (x / scale, y / scale)
            }
            By(x, y) => (at_x + x, at_y + y),
        })
    }

    #[test]
    fn mutter_gets_every_pixel_at_any_scale() {
        for (size, width, scale) in
            [((1920, 1080), 3840, 2.0), ((3072, 1728), 3840, 1.25), ((640, 480), 640, 1.0)]
        {
            let monitor = monitor(Compositor::Mutter, Some(size));
            let height = size.1 * width / size.0;
            for pixel in [
                (0, 0),
                (100, 60),
                (width - 1, 0),
                (size.0 - 1, size.1),
                (0, height - 1),
                (width - 1, height - 1),
            ] {
                let expected = (f64::from(pixel.0) / scale, f64::from(pixel.1) / scale);
                let near =
                    |(x, y): (f64, f64)| (x - expected.0).abs() < 1e-9 && (y - expected.1).abs() < 1e-9;
                let reached = by_mutter(&monitor.steps(pixel, width, None), (7.0, 7.0), size, scale);
                assert!(near(reached), "{pixel:?} at scale {scale}: {reached:?}");
                let start = (300.0 / scale, 200.0 / scale);
                let reached = by_mutter(&monitor.steps(pixel, width, Some((300, 200))), start, size, scale);
                assert!(near(reached), "{pixel:?} at scale {scale}, dragged: {reached:?}");
            }
        }
    }

    #[test]
    fn a_drag_makes_no_detour() {
        let monitor = monitor(Compositor::Mutter, Some((1920, 1080)));
        assert_eq!(monitor.steps((3000, 2000), 3840, None), [To(1919.0, 1079.0), By(540.5, 460.5)]);
        assert_eq!(monitor.steps((3000, 2000), 3840, Some((2990, 2004))), [By(5.0, -2.0)]);
        assert_eq!(monitor.steps((1000, 600), 3840, Some((2990, 2004))), [To(1000.0, 600.0)]);
    }

    #[test]
    fn other_compositors_take_coordinates_of_the_desktop() {
        for compositor in [Compositor::Kwin, Compositor::Other] {
            let monitor = monitor(compositor, Some((1920, 1080)));
            assert_eq!(monitor.steps((3000, 2000), 3840, Some((0, 0))), [To(1500.0, 1000.0)]);
        }
        let unknown = [To(3000.0, 2000.0)];
        assert_eq!(monitor(Compositor::Kwin, None).steps((3000, 2000), 3840, None), unknown);
        assert_eq!(monitor(Compositor::Mutter, Some((1920, 1080))).steps((3000, 2000), 0, None), unknown);
    }
}
