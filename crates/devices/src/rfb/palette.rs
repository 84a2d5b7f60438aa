//! The colours of a rectangle, if they are few: what makes flat content small.

/// Places of the table, four times as many as there are colours.
const PLACES: usize = 1024;

/// Colours, in the order in which they first come.
#[derive(Debug)]
pub(super) struct Palette {
    colours: Vec<u32>,
    /// For each place the number of its colour and one; 0 if it is free.
    table: Box<[u16; PLACES]>,
}

impl Default for Palette {
    fn default() -> Self {
        Palette { colours: Vec::with_capacity(256), table: Box::new([0; PLACES]) }
    }
}

impl Palette {
    /// Finds the colours of `pixels`, at most `max` (up to 256), and each pixel's number among them. Says whether
    /// they are not more.
    pub(super) fn index(&mut self, pixels: &[u32], max: usize, numbers: &mut Vec<u8>) -> bool {
        self.colours.clear();
        self.table.fill(0);
        numbers.clear();
        numbers.reserve(pixels.len());
        let mut rest = pixels;
        while let Some((&colour, behind)) = rest.split_first() {
            let Some(number) = self.number(colour, max) else { return false };
            // Most pixels are like the one before.
            let run = 1 + behind.iter().take_while(|next| **next == colour).count();
            numbers.resize(numbers.len() + run, number);
            rest = &rest[run..];
        }
        true
    }

    /// The number of a colour, which is a new one if there is room.
    fn number(&mut self, colour: u32, max: usize) -> Option<u8> {
        // Fibonacci hashing: the upper bits of a product with 2^32 divided by the golden section.
        let mut place = (colour.wrapping_mul(0x9e37_79b9) >> 22) as usize;
        loop {
            match usize::from(self.table[place]) {
                0 if self.colours.len() >= max => return None,
                0 => {
                    self.colours.push(colour);
                    self.table[place] = self.colours.len() as u16;
                    return Some((self.colours.len() - 1) as u8);
                }
                number if self.colours[number - 1] == colour => return Some((number - 1) as u8),
                _ => place = (place + 1) % PLACES,
            }
        }
    }

    /// What was found.
    pub(super) fn colours(&self) -> &[u32] {
        &self.colours
    }
}

/// Appends rows of numbers in `bits` each (1, 2, 4 or 8), the first in the upper ones, each row in whole bytes.
pub(super) fn pack(numbers: &[u8], width: usize, bits: usize, out: &mut Vec<u8>) {
    if bits == 8 {
        return out.extend(numbers);
    }
    let in_byte = 8 / bits;
    for row in numbers.chunks_exact(width) {
        out.extend(row.chunks(in_byte).map(|some| {
            let byte = some.iter().fold(0, |byte, number| byte << bits | number);
            byte << (bits * (in_byte - some.len()))
        }));
    }
}

/// The number at `column` of a row that [`pack`] made.
pub(super) fn unpack(row: &[u8], column: usize, bits: usize) -> u8 {
    let in_byte = 8 / bits;
    let byte = row[column / in_byte];
    let shift = 8 - bits * (column % in_byte + 1);
    byte >> shift & (0xff >> (8 - bits))
}
