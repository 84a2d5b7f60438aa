//! Zlib streams that continue from one rectangle to the next (RFC 6143, 7.7.5). Each rectangle's data ends with a
//! flush, so the peer can inflate it completely.

use super::protocol::Fault;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The deflating end of a stream.
#[derive(Debug)]
pub(super) struct Deflater(Compress);

impl Deflater {
    pub(super) fn new(level: u32) -> Deflater {
        Deflater(Compress::new(Compression::new(level), true))
    }

    /// Deflates `input`, with a flush at the end.
    pub(super) fn append(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        loop {
            out.reserve(input.len() / 2 + 256);
            let prev_in = self.0.total_in();
            // Cannot fail: the input is valid and the output has room.
            let _ = self.0.compress_vec(input, out, FlushCompress::Sync);
            input = &input[(self.0.total_in() - prev_in) as usize..];
            if input.is_empty() && out.len() < out.capacity() {
                return;
            }
        }
    }
}

/// The inflating end of a stream. Its input comes from a peer that is not trusted.
#[derive(Debug)]
pub(super) struct Inflater(Decompress);

impl Default for Inflater {
    fn default() -> Self {
        Inflater(Decompress::new(true))
    }
}

impl Inflater {
    /// Inflates `input` to exactly `into.len()` bytes.
    pub(super) fn fill(&mut self, mut input: &[u8], into: &mut [u8]) -> Result<(), Fault> {
        let mut filled = 0;
        loop {
            let (prev_in, prev_out) = (self.0.total_in(), self.0.total_out());
            let status = self
                .0
                .decompress(input, &mut into[filled..], FlushDecompress::Sync)
                .map_err(|error| Fault(format!("its zlib stream is corrupt: {error}")))?;
            let consumed = (self.0.total_in() - prev_in) as usize;
            let produced = (self.0.total_out() - prev_out) as usize;
            input = &input[consumed..];
            filled += produced;
            match status {
                _ if input.is_empty() && filled == into.len() => return Ok(()),
                Status::StreamEnd => return Err(Fault::new("its zlib stream ends too early")),
                _ if consumed == 0 && produced == 0 => {
                    let problem = if filled < into.len() { "fewer" } else { "more" };
                    return Err(Fault(format!("its zlib stream has {problem} bytes than its rectangle")));
                }
                _ => {}
            }
        }
    }

    /// Inflates `input` to at most `max` bytes.
    pub(super) fn append(&mut self, input: &[u8], out: &mut Vec<u8>, max: usize) -> Result<(), Fault> {
        match self.append_to_end(input, out, max)? {
            true => Err(Fault::new("its zlib stream ends too early")),
            false => Ok(()),
        }
    }

    /// Inflates `input` to at most `max` bytes. Returns whether the stream has ended.
    pub(super) fn append_to_end(
        &mut self,
        mut input: &[u8],
        out: &mut Vec<u8>,
        max: usize,
    ) -> Result<bool, Fault> {
        let start = out.len();
        loop {
            out.reserve((input.len() * 4).clamp(4096, 1 << 20));
            let prev_in = self.0.total_in();
            let status = self
                .0
                .decompress_vec(input, out, FlushDecompress::Sync)
                .map_err(|error| Fault(format!("its zlib stream is corrupt: {error}")))?;
            input = &input[(self.0.total_in() - prev_in) as usize..];
            if out.len() - start > max {
                return Err(Fault(format!("its zlib stream exceeds {max} bytes")));
            }
            match status {
                Status::StreamEnd => return Ok(true),
                _ if input.is_empty() && out.len() < out.capacity() => return Ok(false),
                Status::BufError if out.len() < out.capacity() => {
                    return Err(Fault::new("its zlib stream does not continue"));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn deflated_pieces_inflate_to_the_original(pieces in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 1..2000), 1usize..200), 1..8,
        )) {
            let (mut deflater, mut exact, mut any) = (Deflater::new(1), Inflater::default(), Inflater::default());
            for (piece, repeats) in pieces {
                let piece = piece.repeat(repeats);
                let mut deflated = Vec::new();
                deflater.append(&piece, &mut deflated);
                let mut back = vec![0; piece.len()];
                prop_assert_eq!(exact.fill(&deflated, &mut back), Ok(()));
                prop_assert!(back == piece);
                let mut back = Vec::new();
                prop_assert_eq!(any.append(&deflated, &mut back, piece.len()), Ok(()));
                prop_assert!(back == piece);
            }
        }

        #[test]
        fn random_bytes_are_rejected_or_stay_within_the_limit(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut into = [0; 100];
            let _ = Inflater::default().fill(&bytes, &mut into);
            let mut out = Vec::new();
            let _ = Inflater::default().append(&bytes, &mut out, 1000);
            prop_assert!(out.len() <= 1000 + (1 << 20));
        }
    }

    #[test]
    fn a_zip_bomb_is_rejected_at_the_limit() {
        let mut deflated = Vec::new();
        Deflater::new(9).append(&vec![0; 50 << 20], &mut deflated);
        let mut out = Vec::new();
        assert!(Inflater::default().append(&deflated, &mut out, 1000).is_err());
        assert!(out.capacity() <= 4 << 20, "{} bytes", out.capacity());
        assert!(Inflater::default().fill(&deflated, &mut [0; 1000]).is_err());
        let mut fewer = vec![0; 1 << 20];
        deflated.clear();
        Deflater::new(9).append(&[0; 100], &mut deflated);
        assert!(Inflater::default().fill(&deflated, &mut fewer).is_err());
    }
}
