//! Compares the link with its arithmetic, and checks properties of any use.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn link(text: &str) -> Link<u64> {
    Link::new(text.parse().unwrap(), 1)
}

fn drain(link: &mut Link<u64>) -> Vec<(u64, u64)> {
    std::iter::from_fn(|| link.pop(u64::MAX / 2)).collect()
}

#[test]
fn every_packet_has_exactly_the_delay() {
    let mut link = link("delay=20ms");
    link.push(5, 1, 1500).unwrap();
    assert_eq!(link.deadline(), Some(5 + 20 * MS));
    assert_eq!(link.pop(4 + 20 * MS), None);
    assert_eq!(link.pop(5 + 20 * MS), Some((5 + 20 * MS, 1)));
    assert_eq!((link.deadline(), link.held()), (None, (0, 0)));
}

#[test]
fn the_rate_spaces_a_burst_even_for_a_late_caller() {
    // 1250 bytes at 10 Mbit/s take 1 ms each.
    let mut link = link("rate=10mbit,delay=7ms");
    for i in 0..3 {
        link.push(0, i, 1250).unwrap();
    }
    assert_eq!(link.deadline(), Some(8 * MS));
    assert_eq!(drain(&mut link), [(8 * MS, 0), (9 * MS, 1), (10 * MS, 2)]);
}

#[test]
fn an_idle_link_accumulates_no_credit() {
    let mut link = link("rate=10mbit");
    link.push(0, 0, 1250).unwrap();
    link.push(100 * MS, 1, 1250).unwrap();
    link.push(100 * MS, 2, 1250).unwrap();
    assert_eq!(drain(&mut link), [(MS, 0), (101 * MS, 1), (102 * MS, 2)]);
}

#[test]
fn a_full_queue_drops_the_tail_and_tells_when_it_has_room() {
    let mut link = link("rate=10mbit,queue=4,delay=500ms");
    for i in 0..6 {
        let dropped = link.push(0, i, 1250).err();
        assert_eq!(dropped, (i >= 4).then_some(Dropped { fate: Fate::Overflowed, packet: i }));
    }
    assert_eq!((link.room(0), link.room_at()), (0, Some(MS)));
    assert_eq!((link.room(MS), link.room_at()), (1, None));
    assert_eq!(link.room(4 * MS), 4); // transmitted, though still in flight
    assert_eq!(link.held(), (4, 5000));
    assert_eq!(link.counters().overflowed, 2);
}

#[test]
fn no_rate_means_no_queue() {
    let mut link = link("queue=1");
    for i in 0..100 {
        link.push(0, i, 1500).unwrap();
    }
    assert_eq!(drain(&mut link).len(), 100);
}

#[test]
fn jitter_is_uniform_and_in_order_by_default() {
    for reorder in [false, true] {
        let mut link = link(if reorder { "delay=10ms,jitter=4ms,reorder" } else { "delay=10ms,jitter=4ms" });
        let count = 20_000;
        for i in 0..count {
            link.push(i * MS, i, 100).unwrap(); // 1 ms apart: jitter overtakes
        }
        let out = drain(&mut link);
        let swaps = out.windows(2).filter(|pair| pair[0].1 > pair[1].1).count();
        assert_eq!(swaps > 0, reorder);
        assert!(out.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        let extra = |&(due, i): &(u64, u64)| due - i * MS - 10 * MS;
        assert!(out.iter().map(extra).all(|ns| ns <= 4 * MS));
        if reorder {
            let mean = out.iter().map(extra).sum::<u64>() / count;
            assert!((1_950_000..2_050_000).contains(&mean), "{mean}");
            let low = out.iter().filter(|packet| extra(packet) < MS).count();
            assert!((4_700..5_300).contains(&low), "{low}");
        }
    }
}

#[test]
fn bursts_have_the_right_frequency_and_length() {
    let mut link = link("burst=5%/8");
    let fates: Vec<bool> = (0..400_000).map(|i| link.push(i, i, 100).is_err()).collect();
    let lost = fates.iter().filter(|lost| **lost).count();
    let bursts = fates.windows(2).filter(|pair| !pair[0] && pair[1]).count();
    assert!((18_500..21_500).contains(&lost), "{lost}");
    assert!((7.5..8.5).contains(&(lost as f64 / bursts as f64)), "{lost} in {bursts}");
    assert_eq!(link.counters().lost, lost as u64);
}

#[test]
fn duplicates_and_bit_flips() {
    let mut link = link("duplicate=10%");
    (0..10_000).for_each(|i| link.push(i, i, 100).unwrap());
    let out = drain(&mut link);
    let extra = out.len() as u64 - 10_000;
    assert!((900..1_100).contains(&extra), "{extra}");
    assert_eq!(link.counters().duplicated, extra);

    let mut link: Link<Vec<u8>> = Link::new("corrupt=100%".parse().unwrap(), 1);
    link.push(0, vec![0; 9], 9).unwrap();
    link.push(0, vec![], 0).unwrap();
    let (_, packet) = link.pop(0).unwrap();
    assert_eq!(packet.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert_eq!(link.pop(0), Some((0, vec![])));
}

#[test]
fn a_cut_loses_packets_in_the_link_and_later_ones() {
    let mut link = link("delay=20ms,rate=10mbit");
    for i in 0..3 {
        link.push(0, i, 1250).unwrap();
    }
    let up = link.params().clone();
    assert_eq!(link.configure(MS, Params { down: true, ..up.clone() }), [0, 1, 2]);
    assert_eq!(link.push(2 * MS, 3, 1250), Err(Dropped { fate: Fate::Cut, packet: 3 }));
    assert_eq!((drain(&mut link), link.deadline(), link.held()), (vec![], None, (0, 0)));
    assert_eq!(link.configure(5 * MS, up), []);
    link.push(5 * MS, 4, 1250).unwrap();
    assert_eq!(drain(&mut link), [(26 * MS, 4)]);
    assert_eq!(link.counters().cut, 4);
}

#[test]
fn a_new_rate_applies_to_the_queue() {
    let mut link = link("rate=10mbit");
    link.push(0, 0, 1250).unwrap();
    link.push(0, 1, 1250).unwrap();
    // Half of the first packet is sent; the rest is sent ten times faster.
    link.configure(MS / 2, "rate=100mbit".parse().unwrap());
    assert_eq!(drain(&mut link), [(550_000, 0), (650_000, 1)]);
    link.configure(MS, "rate=1kbit".parse().unwrap());
    link.push(MS, 2, 1250).unwrap();
    link.configure(2 * MS, Params::default()); // no limit any more
    assert_eq!(drain(&mut link), [(2 * MS, 2)]);
}

#[test]
fn a_shorter_delay_does_not_overtake_unless_reordering() {
    let mut link = link("delay=50ms");
    link.push(0, 0, 100).unwrap();
    link.configure(MS, "delay=1ms".parse().unwrap());
    link.push(MS, 1, 100).unwrap();
    assert_eq!(drain(&mut link), [(50 * MS, 0), (50 * MS, 1)]);
    link.configure(60 * MS, "delay=50ms,reorder".parse().unwrap());
    link.push(60 * MS, 2, 100).unwrap();
    link.configure(61 * MS, "delay=1ms,reorder".parse().unwrap());
    link.push(61 * MS, 3, 100).unwrap();
    assert_eq!(drain(&mut link), [(62 * MS, 3), (110 * MS, 2)]);
}

#[test]
fn memory_is_bounded() {
    let mut link = link("delay=1s").hold_at_most(10_000);
    let taken = (0..100).filter(|i| link.push(0, *i, 1000).is_ok()).count();
    assert_eq!((taken, link.held()), (10, (10, 10_000)));
}

#[test]
fn the_same_packets_are_lost_with_and_without_jitter() {
    let fates = |text: &str| -> Vec<bool> {
        let mut link = link(text);
        (0..5000).map(|i| link.push(i * MS, i, 100).is_ok()).collect()
    };
    assert_eq!(fates("loss=3%,burst=2%/5"), fates("loss=3%,burst=2%/5,delay=3ms,jitter=9ms,reorder"));
}

fn any_link() -> impl Strategy<Value = Params> {
    let word = prop_oneof![
        (0..50u32).prop_map(|ms| format!("delay={ms}ms")),
        (0..50u32).prop_map(|ms| format!("jitter={ms}ms")),
        (0..40u32).prop_map(|percent| format!("loss={percent}%")),
        (0..40u32, 2..20u32).prop_map(|(percent, packets)| format!("burst={percent}%/{packets}")),
        (0..40u32).prop_map(|percent| format!("duplicate={percent}%")),
        (1..100u32).prop_map(|mbit| format!("rate={mbit}mbit")),
        (1..20u32).prop_map(|packets| format!("queue={packets}")),
        prop_oneof![Just("reorder"), Just("in-order"), Just("down")].prop_map(String::from),
    ];
    prop::collection::vec(word, 0..8).prop_map(|words| words.join(",").parse().unwrap())
}

/// The times between pushed packets.
fn any_gaps() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0..3 * MS, 0..200)
}

proptest! {
    /// Every packet is delivered or counted as dropped, on any link with any changes.
    #[test]
    fn every_packet_is_delivered_or_counted(plans in prop::collection::vec((any_link(), any_gaps()), 1..4), seed: u64) {
        let mut link: Link<u64> = Link::new(Params::default(), seed).hold_at_most(50_000);
        let (mut now, mut out, mut fell) = (0, 0, 0);
        for (params, gaps) in plans {
            fell += link.configure(now, params).len() as u64;
            for gap in gaps {
                now += gap;
                fell += u64::from(link.push(now, 7, 1000).is_err());
                while let Some((due, _)) = link.pop(now) {
                    prop_assert!(due <= now);
                    out += 1;
                }
                prop_assert!(link.deadline().is_none_or(|deadline| deadline > now || link.held().0 > 0));
            }
        }
        out += drain(&mut link).len() as u64;
        let c = link.counters();
        prop_assert_eq!(link.held(), (0, 0));
        prop_assert_eq!(c.delivered, out);
        prop_assert_eq!(c.sent + c.duplicated, c.lost + c.overflowed + c.cut + c.delivered);
        prop_assert!(c.lost + c.cut + c.overflowed >= fell);
    }

    /// The times of `pop` do not matter, only those of `push`: the same seed gives the same fates and due
    /// times.
    #[test]
    fn late_pops_do_not_change_the_link(params in any_link(), gaps in any_gaps(), seed: u64, eager: bool) {
        let run = |eager: bool| {
            let mut link: Link<u64> = Link::new(params.clone(), seed);
            let (mut now, mut out) = (0, Vec::new());
            for (i, gap) in gaps.iter().enumerate() {
                now += gap;
                let _ = link.push(now, i as u64, 1000);
                while eager && let Some(packet) = link.pop(now) {
                    out.push(packet);
                }
            }
            out.extend(drain(&mut link));
            out
        };
        prop_assert_eq!(run(eager), run(!eager));
    }

    /// Without reordering, packets leave in the order of arrival, never early, and never above the rate.
    #[test]
    fn order_delay_and_rate_hold(mut params in any_link(), gaps in any_gaps(), seed: u64) {
        (params.reorder, params.duplicate_ppm) = (false, 0);
        let mut link: Link<u64> = Link::new(params.clone(), seed);
        let (mut now, mut sent) = (0, Vec::new());
        for gap in gaps {
            now += gap;
            let _ = link.push(now, sent.len() as u64, 1000);
            sent.push(now);
        }
        let out = drain(&mut link);
        prop_assert!(out.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 < pair[1].1));
        let each_ns = 8_000_000_000_000u64.checked_div(params.rate_bps).unwrap_or(0);
        for (due, i) in &out {
            prop_assert!(*due >= sent[*i as usize] + params.delay_ns + each_ns);
        }
        if let (Some(first), Some(last)) = (out.first(), out.last()) {
            let span_ns = last.0 - first.0 + params.jitter_ns;
            prop_assert!(span_ns >= each_ns * (out.len() as u64 - 1));
        }
    }
}
