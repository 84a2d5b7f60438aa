//! Suggestions for mistyped names.

use strsim::damerau_levenshtein;

/// A longer name is never similar. The limit bounds the work for untrusted text.
const NAME_BYTES_MAX: usize = 32;

/// Returns the known name that is nearest to `name`, if it is near enough.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let known = known.filter(|candidate| candidate.len() <= 2 * NAME_BYTES_MAX);
    let (distance, nearest) =
        known.map(|candidate| (damerau_levenshtein(name, candidate), candidate)).min()?;
    (distance <= 1 + name.len() / 4).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = || ["compress", "bundle", "buffer", "fb"].into_iter();
        assert_eq!(nearest("comprss", known()), Some("compress"));
        assert_eq!(nearest("bufer", known()), Some("buffer"));
        assert_eq!(nearest("bundel", known()), Some("bundle"));
        for far in ["teleport", "usb", "", &"c".repeat(4000)] {
            assert_eq!(nearest(far, known()), None, "{far}");
        }
    }
}
