//! The identity of a disk, by which its host finds it again, and by which the application's host recognizes it.
//!
//! As text: `LINK[ removable][ MARK]…`. The link is udev's name for the disk, empty if there is none; the marks are those of its medium. A file
//! has one mark.
//!
//! | link | medium | marks | the same disk |
//! |---|---|---|---|
//! | another one | | | no |
//! | the same, with the serial number of the disk itself (`ata-…`) | fixed | any: its user may have formatted it | yes |
//! | the same, with that of its adapter (`usb-…`) | fixed | none, before or now | yes |
//! | the same, or none before or now | | the same | yes |
//! | otherwise | | | no |

/// The links with the serial number of the disk itself.
const OWN_LINKS: [&str; 5] = ["ata-", "nvme-", "mmc-", "wwn-", "md-uuid-"];
const REMOVABLE: &str = "removable";

/// The identity of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity<'a> {
    /// udev's link below `/dev/disk/by-id`.
    pub(super) link: &'a str,
    /// The drive may have another medium.
    pub(super) is_removable: bool,
    /// The identifiers of the partition table and of the file system; of a file, its inode.
    pub(super) marks: &'a str,
}

impl<'a> Identity<'a> {
    pub(super) fn parse(text: &'a str) -> Identity<'a> {
        let (link, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (first, others) = rest.split_once(' ').unwrap_or((rest, ""));
        match first == REMOVABLE {
            true => Identity { link, is_removable: true, marks: others },
            false => Identity { link, is_removable: false, marks: rest },
        }
    }

    pub(super) fn to_text(self) -> String {
        let Identity { link, is_removable, marks } = self;
        let removable = if is_removable { REMOVABLE } else { "" };
        let words = [link, removable, marks];
        // An empty link keeps its place.
        let rest = words[1..].iter().filter(|word| !word.is_empty());
        rest.fold(link.to_owned(), |text, word| format!("{text} {word}"))
    }

    /// Returns whether a disk with this identity is the one with the other, as far as a host can tell.
    pub(super) fn is_same(self, known: Identity<'_>) -> bool {
        let has_link = !self.link.is_empty() && !known.link.is_empty();
        let has_marks = !self.marks.is_empty() && !known.marks.is_empty();
        let is_fixed = has_link && !self.is_removable && !known.is_removable;
        match has_link && self.link != known.link {
            true => false,
            false if is_fixed && OWN_LINKS.iter().any(|start| self.link.starts_with(start)) => true,
            false if has_marks => self.marks == known.marks,
            false => is_fixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_with_another_medium_is_another_disk() {
        let (reader, no_link) = ("usb-Reader-0:0 removable 0815 47-11", " 0815");
        for (known, found, is_same) in [
            (reader, reader, true),
            (reader, "usb-Reader-0:0 removable 0816 47-11", false),
            (reader, "usb-Reader-0:0 removable", false),
            ("usb-Reader-0:0 removable", "usb-Reader-0:0 removable", false),
            (reader, "usb-Reader-0:1 removable 0815 47-11", false),
            // Its user has written a partition table.
            ("ata-Disk_1", "ata-Disk_1 0816", true),
            ("ata-Disk_1 0815", "ata-Disk_1 0816", true),
            ("ata-Disk_1 0815", "ata-Disk_2 0815", false),
            ("ata-Drive removable 0815", "ata-Drive removable 0816", false),
            // The serial number of an adapter, which may have got another disk.
            ("usb-Dock-0:0", "usb-Dock-0:0 0816", true),
            ("usb-Dock-0:0 0815", "usb-Dock-0:0 0816", false),
            (no_link, no_link, true),
            // udev had not made the link yet.
            (no_link, "ata-Disk_1 0815", true),
            (no_link, " 0816", false),
            ("", "", false),
        ] {
            let (known, found) = (Identity::parse(known), Identity::parse(found));
            assert_eq!(found.is_same(known), is_same, "{known:?}, {found:?}");
            assert_eq!(known.is_same(found), is_same, "{found:?}, {known:?}");
        }
    }

    #[test]
    fn an_identity_is_read_as_it_was_written() {
        for text in [
            "",
            " 0815",
            " removable",
            " removable 0815 47-11",
            "usb-Reader-0:0 removable",
            "ata-Disk_1 0815",
        ] {
            assert_eq!(Identity::parse(text).to_text(), text);
        }
        let reader = Identity { link: "usb-Reader-0:0", is_removable: true, marks: "0815 47-11" };
        assert_eq!(Identity::parse(&reader.to_text()), reader);
    }
}
