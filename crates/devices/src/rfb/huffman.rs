//! Deflate without its search for repetitions (RFC 1951, dynamic Huffman codes of literals alone). In what is left of a
//! photograph behind Tight's gradient nothing repeats; so the search, which takes nearly all the time, finds nothing.

/// What ends a block.
const END: usize = 256;

/// Bytes and the end of a block.
const SYMBOLS: usize = END + 1;

/// Longest code, in bits.
const BITS_MAX: usize = 15;

/// Longest block that is stored as it is.
const STORED_MAX: usize = 0xffff;

/// Bits of a block besides its literals: its head, and the empty stored block behind it.
const FRAME_BITS: u64 = 17 + 19 * 3 + (SYMBOLS as u64 + 1) * 4 + 3 + 7 + 32;

/// A zlib stream (RFC 1950) that goes on from one piece to the next, each of them whole.
#[derive(Debug, Default)]
pub(super) struct HuffmanDeflater {
    has_begun: bool,
}

/// A code and how many bits it has; the first bit is the lowest.
type Code = (u16, u8);

impl HuffmanDeflater {
    /// Appends what `input` becomes, up to a place from which the other end can give all of it.
    pub(super) fn append(&mut self, input: &[u8], out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            // Deflate with a window of 32 KiB, made in the fastest way.
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
        writer.head(&lengths);
        writer.literals(input, &codes(&lengths));
        // An empty stored block ends at a whole byte.
        writer.put(0, 3);
        writer.align();
        writer.out.extend([0, 0, 0xff, 0xff]);
    }
}

/// How often each byte comes, and once the end.
fn count(input: &[u8]) -> [u32; SYMBOLS] {
    // Equal neighbours would wait for each other's increments in one table.
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

/// Lengths of Huffman codes, at most [`BITS_MAX`]; 0 for what does not come. At least two symbols come.
fn code_lengths(counts: &[u32; SYMBOLS]) -> [u8; SYMBOLS] {
    let mut symbols: Vec<usize> = (0..SYMBOLS).filter(|symbol| counts[*symbol] > 0).collect();
    symbols.sort_unstable_by_key(|symbol| counts[*symbol]);
    let mut in_length = [0usize; BITS_MAX + 1];
    for depth in depths(&symbols.iter().map(|symbol| counts[*symbol]).collect::<Vec<_>>()) {
        in_length[depth.min(BITS_MAX)] += 1;
    }
    // Where codes were cut to the longest there may be, others grow until all have room (Kraft's sum is one).
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

/// How deep each of these weights, the lightest first, lies in its Huffman tree.
fn depths(weights: &[u32]) -> Vec<usize> {
    let leaves = weights.len();
    let mut nodes: Vec<u32> = Vec::with_capacity(leaves);
    let mut parents = vec![0; 2 * leaves];
    let (mut leaf, mut node) = (0, 0);
    // Both queues are in order, so the two lightest stand at their fronts.
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

/// The codes that these lengths stand for (RFC 1951, 3.2.2).
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

/// Bits behind bytes, the lowest first.
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

    /// The head of a block of literals (RFC 1951, 3.2.7). The lengths of its codes are said in four bits each.
    fn head(&mut self, lengths: &[u8; SYMBOLS]) {
        // Not the last block; dynamic codes; no lengths of repetitions, one distance, all lengths of lengths.
        self.put(0, 1);
        self.put(2, 2);
        self.put(0, 5);
        self.put(0, 5);
        self.put(15, 4);
        // The order of RFC 1951: 16, 17 and 18, which repeat, come first and are not used.
        (0..19).for_each(|at| self.put(if at < 3 { 0 } else { 4 }, 3));
        // A code of four bits that all are used is the number itself, the highest bit first. The distance has none.
        for length in lengths.iter().chain([&0]) {
            self.put(u32::from(length.reverse_bits() >> 4), 4);
        }
    }

    fn literals(&mut self, input: &[u8], codes: &[Code; SYMBOLS]) {
        let start = self.out.len();
        // No code is longer than two bytes; the last write is of eight.
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
        fn every_piece_comes_back_whole(pieces in prop::collection::vec(
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
    fn codes_that_would_be_too_long_are_cut() {
        // Weights that grow like Fibonacci's numbers make the deepest tree there is.
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
