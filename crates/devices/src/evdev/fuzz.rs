//! Inverts the kernel's smoothing of absolute axes.
//!
//! The kernel shortens or ignores small steps of an axis by its `fuzz`. The device's values have been smoothed once. The
//! application's node has the same `fuzz` and would smooth them again. This module therefore computes the raw value that
//! the node's filter turns into the wanted one.

/// Applies the kernel's filter (`input_defuzz_abs_event` in `drivers/input/input.c`), with the kernel's arithmetic.
pub(super) fn filtered(raw: i32, old: i32, fuzz: i32) -> i32 {
    if fuzz == 0 {
        return raw;
    }
    let is_within = |width: i32| raw > old.wrapping_sub(width) && raw < old.wrapping_add(width);
    if is_within(fuzz / 2) {
        old
    } else if is_within(fuzz) {
        old.wrapping_mul(3).wrapping_add(raw) / 4
    } else if is_within(fuzz.wrapping_mul(2)) {
        old.wrapping_add(raw) / 2
    } else {
        raw
    }
}

/// Returns the raw values that move an axis from `old` to `wanted`: one value if a filter with the same `fuzz` made that
/// step; two values over a position nearby otherwise (merged steps, or a snapshot); `wanted` itself if no values exist.
pub(super) fn raw_steps(wanted: i32, old: i32, fuzz: i32) -> Vec<i32> {
    if let Some(raw) = raw_step(wanted, old, fuzz) {
        return vec![raw];
    }
    const STEPS: i64 = 32;
    let by_way_of = (1..=STEPS).flat_map(|step| [step, -step]).find_map(|step| {
        let between = i32::try_from(i64::from(old) + i64::from(fuzz) * 2 * step / STEPS).ok()?;
        Some(vec![raw_step(between, old, fuzz)?, raw_step(wanted, between, fuzz)?])
    });
    by_way_of.unwrap_or_else(|| vec![wanted])
}

fn raw_step(wanted: i32, old: i32, fuzz: i32) -> Option<i32> {
    let (wide_wanted, wide_old) = (i64::from(wanted), i64::from(old));
    let quarter = (-3..=3).map(|rest| 4 * wide_wanted - 3 * wide_old + rest);
    let half = (-1..=1).map(|rest| 2 * wide_wanted - wide_old + rest);
    std::iter::once(wide_wanted)
        .chain(quarter)
        .chain(half)
        .filter_map(|raw| i32::try_from(raw).ok())
        .find(|raw| filtered(*raw, old, fuzz) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn filtered_values_pass_a_second_filter_unchanged(
            fuzz in 0..300i32,
            raw in prop::collection::vec(-2000..2000i32, 1..60),
        ) {
            let (mut source, mut node) = (0, 0);
            for raw in raw {
                let moved = filtered(raw, source, fuzz);
                if moved == source {
                    continue;
                }
                source = moved;
                let steps = raw_steps(source, node, fuzz);
                prop_assert_eq!(steps.len(), 1);
                node = filtered(steps[0], node, fuzz);
                prop_assert_eq!(node, source);
            }
        }

        #[test]
        fn any_step_needs_at_most_two_values(fuzz in 0..300i32, old in -2000..2000i32, wanted in -2000..2000i32) {
            let steps = raw_steps(wanted, old, fuzz);
            prop_assert!(steps.len() <= 2);
            let arrived = steps.iter().fold(old, |old, raw| filtered(*raw, old, fuzz));
            // A fuzz of a few units leaves no room between the filter's branches.
            let tolerance = if fuzz >= 32 { 0 } else { fuzz };
            prop_assert!((arrived - wanted).abs() <= tolerance, "{} for {}", arrived, wanted);
        }

        #[test]
        fn any_numbers_are_accepted(wanted: i32, old: i32, fuzz in 0..=i32::MAX) {
            prop_assert!(raw_steps(wanted, old, fuzz).len() <= 2);
        }
    }
}
