//! Deflate without the search for repetitions: dynamic Huffman codes of literals only (RFC 1951).
//!
//! The differences from the gradient prediction of a photograph have no repetitions. The search for them takes nearly
//! all the time of deflate and finds nothing, so it is omitted.

/// The symbol that ends a block.
const END: usize = 256;

/// The number of symbols: the bytes and the end of the block.
const SYMBOLS: usize = END + 1;

/// The length of the longest code, in bits.
const BITS_MAX: usize = 15;

/// The most bytes of a stored (uncompressed) block.
const STORED_MAX: usize = 0xffff;

/// The bits of a block in addition to its literals: its header, and the empty stored block after it.
const FRAME_BITS: u64 = 17 + 19 * 3 + (SYMBOLS as u64 + 1) * 4 + 3 + 7 + 32;

/// A zlib stream (RFC 1950) that continues from one piece to the next. Each piece ends with a flush.
#[derive(Debug, Default)]
pub(super) struct HuffmanDeflater {
    has_header: bool,
}

/// A code and its number of bits. The first bit is the lowest.
type Code = (u16, u8);

impl HuffmanDeflater {
    /// Deflates `input`, with a flush at the end.
    pub(super) fn append(&mut self, input: &[u8], out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.has_header, true) {
            // The zlib header: deflate with a window of 32 KiB, fastest level.
            out.extend([0x78, 0x01]);
        }
        let counts = count(input);
        let lengths = code_lengths(&counts);
        let bits: u64 =
            counts.iter().zip(&lengths).map(|(n, length)| u64::from(*n) * u64::from(*length)).sum();
        if (bits + FRAME_BITS) / 8 >= input.len() as u64 {
            for piece in input.chunks(STORED_MAX) {
                let length = piece.len() as u16;
                out.push(0);
                out.extend(length.to_le_bytes());
                out.extend((!length).to_le_bytes());
                out.extend(piece);
            }
            return;
        }
        let mut writer = BitWriter { bits: 0, count: 0, out };
        writer.header(&lengths);
        writer.literals(input, &codes(&lengths));
        // Flush: an empty stored block ends at a byte boundary.
        writer.put(0, 3);
        writer.align();
        writer.out.extend([0, 0, 0xff, 0xff]);
    }
}

/// Counts each byte of `input`; the end counts once.
fn count(input: &[u8]) -> [u32; SYMBOLS] {
    // Four tables: in a single one, each of several equal neighbours would wait for the increment of the one before.
    let mut tables = [[0u32; 256]; 4];
    let (fours, rest) = input.as_chunks::<4>();
    for four in fours {
        for (table, byte) in tables.iter_mut().zip(four) {
            table[usize::from(*byte)] += 1;
        }
    }
    rest.iter().for_each(|byte| tables[0][usize::from(*byte)] += 1);
    std::array::from_fn(|symbol| match symbol {
        END => 1,
        byte => tables.iter().map(|table| table[byte]).sum(),
    })
}

/// Returns the lengths of Huffman codes, at most [`BITS_MAX`]; 0 for symbols that do not occur. At least two symbols
/// occur.
fn code_lengths(counts: &[u32; SYMBOLS]) -> [u8; SYMBOLS] {
    let mut symbols: Vec<usize> = (0..SYMBOLS).filter(|symbol| counts[*symbol] > 0).collect();
    symbols.sort_unstable_by_key(|symbol| counts[*symbol]);
    let mut in_length = [0usize; BITS_MAX + 1];
    for depth in depths(&symbols.iter().map(|symbol| counts[*symbol]).collect::<Vec<_>>()) {
        in_length[depth.min(BITS_MAX)] += 1;
    }
    // Truncating long codes has made Kraft's sum too large. Lengthen others until it is one again.
    let mut sum: usize = (1..=BITS_MAX).map(|length| in_length[length] << (BITS_MAX - length)).sum();
    while sum > 1 << BITS_MAX {
        in_length[BITS_MAX] -= 1;
        if let Some(length) = (1..BITS_MAX).rev().find(|length| in_length[*length] > 0) {
            in_length[length] -= 1;
            in_length[length + 1] += 2;
        }
        sum -= 1;
    }
    let mut lengths = [0; SYMBOLS];
    let longest_first =
        (1..=BITS_MAX).rev().flat_map(|length| std::iter::repeat_n(length, in_length[length]));
    for (symbol, length) in symbols.into_iter().zip(longest_first) {
        lengths[symbol] = length as u8;
    }
    lengths
}

/// Returns the depth of each weight in the Huffman tree. `weights` are sorted, the lightest first.
fn depths(weights: &[u32]) -> Vec<usize> {
    let leaves = weights.len();
    let mut nodes: Vec<u32> = Vec::with_capacity(leaves);
    let mut parents = vec![0; 2 * leaves];
    let (mut leaf, mut node) = (0, 0);
    // Leaves and inner nodes are two sorted queues, so the lightest is at the front of one of them.
    for parent in 0..leaves.saturating_sub(1) {
        let mut lightest = |nodes: &[u32]| {
            let is_leaf = leaf < leaves && nodes.get(node).is_none_or(|weight| weights[leaf] <= *weight);
            let (weight, at) = if is_leaf { (weights[leaf], leaf) } else { (nodes[node], leaves + node) };
            *if is_leaf { &mut leaf } else { &mut node } += 1;
            parents[at] = leaves + parent;
            weight
        };
        let weight = lightest(&nodes) + lightest(&nodes);
        nodes.push(weight);
    }
    let mut depths = vec![0; 2 * leaves];
    let root = leaves + nodes.len() - 1;
    for at in (0..root).rev() {
        depths[at] = depths[parents[at]] + 1;
    }
    depths.truncate(leaves);
    depths
}

/// Returns the canonical codes of these lengths (RFC 1951, 3.2.2).
fn codes(lengths: &[u8; SYMBOLS]) -> [Code; SYMBOLS] {
    let mut in_length = [0u16; BITS_MAX + 1];
    lengths.iter().for_each(|length| in_length[usize::from(*length)] += 1);
    in_length[0] = 0;
    let mut next = [0u16; BITS_MAX + 1];
    for length in 1..=BITS_MAX {
        next[length] = (next[length - 1] + in_length[length - 1]) << 1;
    }
    lengths.map(|length| {
        if length == 0 {
            return (0, 0);
        }
        let code = &mut next[usize::from(length)];
        *code += 1;
        ((*code - 1).reverse_bits() >> (16 - length), length)
    })
}

/// Appends bits to bytes, the lowest first.
struct BitWriter<'a> {
    bits: u64,
    count: u32,
    out: &'a mut Vec<u8>,
}

impl BitWriter<'_> {
    fn put(&mut self, bits: u32, count: u32) {
        self.bits |= u64::from(bits) << self.count;
        self.count += count;
        while self.count >= 8 {
            self.out.push(self.bits as u8);
            self.bits >>= 8;
            self.count -= 8;
        }
    }

    fn align(&mut self) {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
    }

    /// Appends the header of a block of literals (RFC 1951, 3.2.7), with four bits for the length of each code.
    fn header(&mut self, lengths: &[u8; SYMBOLS]) {
        // Not the last block; dynamic codes; 257 literals; one distance; 19 code length codes.
        self.put(0, 1);
        self.put(2, 2);
        self.put(0, 5);
        self.put(0, 5);
        self.put(15, 4);
        // Lengths of the code length codes. Symbols 16, 17 and 18 (repeat) come first and are not used.
        (0..19).for_each(|at| self.put(if at < 3 { 0 } else { 4 }, 3));
        // All 16 codes have four bits, so each code is its symbol, with the highest bit first. The distance has length
        // 0.
        for length in lengths.iter().chain([&0]) {
            self.put(u32::from(length.reverse_bits() >> 4), 4);
        }
    }

    fn literals(&mut self, input: &[u8], codes: &[Code; SYMBOLS]) {
        let start = self.out.len();
        // A code has at most two bytes, and each write has eight.
        self.out.resize(start + 2 * input.len() + 16, 0);
        let (mut bits, mut count, mut at) = (self.bits, self.count, start);
        let (threes, rest) = input.as_chunks::<3>();
        for three in threes.iter().map(|three| &three[..]).chain([rest]) {
            for byte in three {
                let (code, length) = codes[usize::from(*byte)];
                bits |= u64::from(code) << count;
                count += u32::from(length);
            }
            self.out[at..at + 8].copy_from_slice(&bits.to_le_bytes());
            at += (count / 8) as usize;
            bits >>= count & !7;
            count &= 7;
        }
        self.out.truncate(at);
        (self.bits, self.count) = (bits, count);
        let (code, length) = codes[END];
        self.put(code.into(), length.into());
    }
}

#[cfg(test)]
mod tests {
    use super::super::deflate::Inflater;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn deflated_pieces_inflate_to_the_original(pieces in prop::collection::vec(
            (1usize..20_000, 0u32..9, any::<u32>()), 1..6,
        )) {
            let (mut deflater, mut inflater) = (HuffmanDeflater::default(), Inflater::default());
            for (length, narrowness, seed) in pieces {
                let piece: Vec<u8> = (0..length as u32)
                    .map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9) >> 24 >> narrowness) as u8)
                    .collect();
                let mut deflated = Vec::new();
                deflater.append(&piece, &mut deflated);
                prop_assert!(deflated.len() <= piece.len() + 2 + 5 * piece.len().div_ceil(STORED_MAX));
                let mut back = vec![0; piece.len()];
                prop_assert_eq!(inflater.fill(&deflated, &mut back), Ok(()));
                prop_assert!(back == piece);
            }
        }
    }

    #[test]
    fn codes_are_limited_to_fifteen_bits() {
        // Fibonacci numbers as weights give the deepest Huffman tree.
        let (mut a, mut b) = (1usize, 1usize);
        let mut piece = Vec::new();
        for byte in 0..24 {
            piece.extend(std::iter::repeat_n(byte, a));
            (a, b) = (b, a + b);
        }
        let mut deflated = Vec::new();
        HuffmanDeflater::default().append(&piece, &mut deflated);
        let mut back = vec![0; piece.len()];
        Inflater::default().fill(&deflated, &mut back).unwrap();
        assert!(back == piece);
        assert!(deflated.len() < piece.len() / 3, "{} of {}", deflated.len(), piece.len());
    }
}
