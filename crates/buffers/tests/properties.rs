//! A body behaves like its plain bytes, in any pieces. Recycled memory has no other reader.

use buffers::{Body, HEAD_BYTES, Pool, Recycler, Ring, RingFull};
use bytes::Bytes;
use proptest::prelude::*;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// An operation on a body. Lengths are shares of its length.
#[derive(Debug, Clone)]
enum Step {
    Push(Vec<u8>),
    PushFront(Vec<u8>),
    SplitFront(usize),
    TakeFront,
    SkipFront(usize),
    SplitOffFront(usize),
    Append(Vec<Vec<u8>>),
    Join,
    Rewrite(bool),
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..2 * HEAD_BYTES)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        bytes().prop_map(Step::Push),
        bytes().prop_map(Step::PushFront),
        (0..200usize).prop_map(Step::SplitFront),
        Just(Step::TakeFront),
        (0..200usize).prop_map(Step::SkipFront),
        (0..200usize).prop_map(Step::SplitOffFront),
        prop::collection::vec(bytes(), 0..4).prop_map(Step::Append),
        Just(Step::Join),
        any::<bool>().prop_map(Step::Rewrite),
    ]
}

/// Removes `length` bytes from the front of the model, if there are enough.
fn front(model: &mut Vec<u8>, length: usize) -> Option<Vec<u8>> {
    (length <= model.len()).then(|| model.drain(..length).collect())
}

proptest! {
    #[test]
    fn a_body_behaves_like_its_bytes(steps in prop::collection::vec(step(), 0..30)) {
        let (mut body, mut model) = (Body::new(), Vec::new());
        for step in steps {
            match step {
                Step::Push(piece) => {
                    model.extend_from_slice(&piece);
                    body.push(Bytes::from(piece));
                }
                Step::PushFront(header) => {
                    model.splice(0..0, header.iter().copied());
                    body.push_front(&header);
                }
                Step::SplitFront(length) => {
                    let split = body.split_front(length).map(|piece| piece.to_vec());
                    prop_assert_eq!(split, front(&mut model, length));
                }
                Step::TakeFront => {
                    let peeked = body.peek_front::<28>();
                    prop_assert_eq!(body.take_front::<28>(), peeked);
                    prop_assert_eq!(peeked.map(|header| header.to_vec()), front(&mut model, 28));
                }
                Step::SkipFront(length) => {
                    prop_assert_eq!(body.skip_front(length), front(&mut model, length).is_some());
                }
                Step::SplitOffFront(length) => {
                    let split = body.split_off_front(length).map(|split| split.into_bytes().to_vec());
                    prop_assert_eq!(split, front(&mut model, length));
                }
                Step::Append(pieces) => {
                    model.extend(pieces.iter().flatten());
                    body.append(pieces.into_iter().map(Bytes::from).collect());
                }
                Step::Rewrite(is_shared) => {
                    let other = is_shared.then(|| body.clone());
                    let mut bytes = std::mem::take(&mut body).into_mut(16);
                    prop_assert_eq!(&bytes[..], &model[..]);
                    bytes.iter_mut().for_each(|byte| *byte ^= 1);
                    prop_assert_eq!(other.is_none_or(|other| other == Body::from(model.clone())), true);
                    model.iter_mut().for_each(|byte| *byte ^= 1);
                    body = Body::from(bytes.freeze());
                }
                Step::Join => prop_assert_eq!(body.as_slice(), &model[..]),
            }
            prop_assert_eq!(body.len(), model.len());
            prop_assert_eq!(body.is_empty(), model.is_empty());
            prop_assert_eq!(body.chunks().flatten().copied().collect::<Vec<_>>(), model.clone());
            prop_assert_eq!(body.pieces(), body.chunks().count());
            prop_assert_eq!(&body, &Body::from(model.clone()));
        }
        let mut copied = vec![0; model.len() + 1];
        prop_assert!(body.copy_to(&mut copied));
        prop_assert_eq!(&copied[..model.len()], &model[..]);
        prop_assert!(model.is_empty() || !body.copy_to(&mut copied[..model.len() - 1]));
        prop_assert_eq!(body.into_bytes(), model);
    }

    #[test]
    fn slices_and_shares_leave_out_the_skipped_bytes(pieces in prop::collection::vec(bytes(), 0..10), skip in 0..900usize) {
        let whole: Vec<u8> = pieces.concat();
        let mut body: Body = pieces.into_iter().map(Bytes::from).collect();
        body.push_front(&[9; 20]);
        let mut slices = SmallVec::new();
        body.io_slices(skip, &mut slices);
        let left: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        prop_assert!(slices.iter().all(|slice| !slice.is_empty()));
        prop_assert_eq!(&left, &[&[9; 20][..], &whole].concat().split_off(skip.min(whole.len() + 20)));
        let shares: Vec<Bytes> = body.shares_behind(skip).collect();
        prop_assert!(shares.iter().all(|share| !share.is_empty()));
        prop_assert_eq!(shares.concat(), left);
        for (number, chunk) in body.chunks().enumerate() {
            prop_assert_eq!(&body.share(number, 1..chunk.len())[..], &chunk[1..]);
        }
    }

    /// Slices live for a while and are dropped in any order. None changes while it lives.
    #[test]
    fn recycled_memory_has_no_other_reader(
        uses in prop::collection::vec((1..5000usize, 1..4usize, 0..12usize), 1..60),
        buffers_max in 0..5usize,
    ) {
        let bytes_max = 12_000;
        let mut recycler = Recycler::new(buffers_max, bytes_max);
        let mut held: VecDeque<(u8, Bytes)> = VecDeque::new();
        for (number, (capacity, cuts, keep)) in uses.into_iter().enumerate() {
            let mut buffer = recycler.take(capacity);
            prop_assert!(buffer.is_empty() && buffer.capacity() >= capacity);
            let whole = buffer.capacity();
            buffer.resize(capacity, number as u8);
            for _ in 0..cuts {
                let slice = buffer.split_to(capacity / cuts).freeze();
                held.push_back((number as u8, slice));
            }
            recycler.retire(buffer, whole);
            prop_assert!(recycler.bytes() <= bytes_max);
            while held.len() > keep {
                held.pop_front();
            }
            for (fill, slice) in &held {
                prop_assert!(slice.iter().all(|byte| byte == fill));
            }
        }
    }

    #[test]
    fn a_ring_is_a_bounded_queue(pushes in prop::collection::vec(any::<bool>(), 0..200), capacity in 1..8usize) {
        let (ring, mut model) = (Ring::new(capacity), VecDeque::new());
        for (number, is_push) in pushes.into_iter().enumerate() {
            if is_push {
                let expected = match model.len() == capacity {
                    true => Err(RingFull(number)),
                    false => Ok(model.is_empty()),
                };
                if expected.is_ok() {
                    model.push_back(number);
                }
                prop_assert_eq!(ring.push(number), expected);
            } else {
                let was_full = model.len() == capacity;
                prop_assert_eq!(ring.pop(), model.pop_front().map(|item| (item, was_full)));
            }
            prop_assert_eq!(ring.len(), model.len());
        }
    }
}

#[test]
fn a_recycler_reuses_the_newest_buffer() {
    let mut recycler = Recycler::new(2, 1 << 20);
    let mut first = recycler.take(1000);
    first.resize(1000, 1);
    let place = first.as_ptr();
    let shared = first.split().freeze();
    recycler.retire(first, 1000);
    assert_ne!(recycler.take(1000).as_ptr(), place, "somebody still reads it");
    drop(shared);
    assert_eq!(recycler.take(1000).as_ptr(), place);
}

#[test]
fn a_pool_reuses_a_buffer_after_its_last_drop() {
    let pool = Pool::new(4096, 1);
    let lease = pool.take();
    let place = lease.as_ptr();
    let shared = lease.freeze();
    let share = shared.slice(10..20);
    drop(shared);
    let other = pool.take();
    assert_ne!(other.as_ptr(), place, "somebody still reads it");
    drop(share);
    assert_eq!(pool.take().as_ptr(), place);
    drop(other);
}
