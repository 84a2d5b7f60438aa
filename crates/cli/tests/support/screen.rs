//! A screen in a file, as a viewer that is compared with.

use std::fs;

const HEADER_BYTES: usize = 100;

/// A framebuffer as a file of an X server.
pub(crate) struct Screen {
    pub(crate) path: String,
    width: usize,
    height: usize,
}

impl Screen {
    /// Makes a black one.
    pub(crate) fn new(path: String, width: usize, height: usize) -> Screen {
        let [wide, high] = [width as u32, height as u32];
        let fields: [&[u32]; 5] = [
            &[HEADER_BYTES as u32, 7, 2, 24],
            &[wide, high, 0, 0, 32, 0, 32, 32],
            &[wide * 4],
            &[5, 0xff_0000, 0xff00, 0xff, 8, 256, 0],
            &[wide, high, 0, 0, 0],
        ];
        let mut bytes: Vec<u8> = fields.concat().iter().flat_map(|field| field.to_be_bytes()).collect();
        assert_eq!(bytes.len(), HEADER_BYTES);
        bytes.resize(HEADER_BYTES + width * height * 4, 0);
        fs::write(&path, bytes).unwrap();
        Screen { path, width, height }
    }

    /// Returns the red, green and blue of each pixel.
    pub(crate) fn colours(&self) -> Vec<[u8; 3]> {
        let bytes = fs::read(&self.path).unwrap();
        let pixels = bytes[HEADER_BYTES..].as_chunks::<4>().0;
        assert_eq!(pixels.len(), self.width * self.height);
        pixels.iter().map(|[blue, green, red, _]| [*red, *green, *blue]).collect()
    }

    /// Returns the share of the pixels that have this colour.
    pub(crate) fn share_of(&self, colour: [u8; 3]) -> f64 {
        let colours = self.colours();
        colours.iter().filter(|one| **one == colour).count() as f64 / colours.len() as f64
    }
}
