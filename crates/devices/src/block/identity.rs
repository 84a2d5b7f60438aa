//! The identity of a disk, by which its host finds it again, and by which the application's host recognizes it.
//!
//! As text: `LINK[ removable][ MARK]…`. The link is udev's name for the disk, empty if there is none; the marks are those of its medium. A file
//! has one mark, `file-FILE[-TIME]`: its inode, or its name if its file system keeps no inodes, and the time at which it was made.
//!
//! | link | medium | marks | the same disk |
//! |---|---|---|---|
//! | another one | | | no |
//! | the same, with the serial number of the disk itself (`ata-…`) | fixed | any: its user may have formatted it | yes |
//! | the same, with that of its adapter (`usb-…`) | fixed | none, before or now | yes |
//! | the same, or none before or now | | the same | yes |
//! | otherwise | | | no |
//!
//! The marks of a file are the same without a time, before or now: another kernel may tell it.

/// The links with the serial number of the disk itself.
const OWN_LINKS: [&str; 6] = ["ata-", "nvme-", "mmc-", "md-uuid-", "dm-uuid-", "wwn-"];
/// The order in which a link is chosen. The world-wide name of a disk at USB may be that of its adapter.
const CHOSEN: [&str; 7] = ["ata-", "nvme-", "mmc-", "md-uuid-", "dm-uuid-", "usb-", "wwn-"];
/// Links to the same disk that tell more to users come first.
const GENERIC: [&str; 3] = ["nvme-eui.", "nvme-uuid.", "scsi-"];
const REMOVABLE: &str = "removable";
/// The start of the mark of a file.
const FILE: &str = "file-";

/// The identity of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity<'a> {
    /// udev's link below `/dev/disk/by-id`.
    pub(super) link: &'a str,
    /// The drive may have another medium.
    pub(super) is_removable: bool,
    /// The identifiers of the partition table and of the file system; of a file, its own mark.
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
            false if has_marks => are_same_marks(self.marks, known.marks),
            false => is_fixed,
        }
    }
}

/// Returns the link that identifies a disk; empty without links.
pub(super) fn chosen(links: impl Iterator<Item = String>) -> String {
    let key = |link: &String| {
        let starts = |start: &&str| link.starts_with(*start);
        let place = CHOSEN.iter().position(starts).unwrap_or(CHOSEN.len());
        (place, GENERIC.iter().any(starts), link.clone())
    };
    links.min_by_key(key).unwrap_or_default()
}

/// Returns the mark of a file. `file`: its inode or its name.
pub(super) fn file_mark(file: &str, made: Option<(i64, u32)>) -> String {
    let time = made.map(|(seconds, nanoseconds)| format!("-{seconds}.{nanoseconds:09}"));
    format!("{FILE}{file}{}", time.unwrap_or_default())
}

/// Returns inode or name, and time, of the mark of a file; `None` for other marks.
fn file_of(marks: &str) -> Option<(&str, Option<&str>)> {
    let file = marks.strip_prefix(FILE)?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_time = |text: &str| {
        let parts = text.split_once('.');
        parts.is_some_and(|(seconds, rest)| is_number(seconds) && is_number(rest) && rest.len() == 9)
    };
    Some(match file.rsplit_once('-') {
        Some((file, time)) if is_time(time) => (file, Some(time)),
        _ => (file, None),
    })
}

fn are_same_marks(found: &str, known: &str) -> bool {
    match (file_of(found), file_of(known)) {
        (Some((file, Some(made))), Some((other, Some(time)))) => file == other && made == time,
        (Some((file, _)), Some((other, _))) => file == other,
        _ => found == known,
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
            ("md-uuid-1 0815", "md-uuid-1 0816", true),
            ("dm-uuid-LVM-1", "dm-uuid-LVM-1 0816", true),
            ("wwn-0x5 0815", "wwn-0x5", true),
            // The serial number of an adapter, which may have got another disk.
            ("usb-Dock-0:0", "usb-Dock-0:0 0816", true),
            ("usb-Dock-0:0 0815", "usb-Dock-0:0 0816", false),
            (no_link, no_link, true),
            // udev had not made the link yet.
            (no_link, "ata-Disk_1 0815", true),
            (no_link, " 0816", false),
            ("", "", false),
            (" file-7-123.000000004", " file-7-123.000000004", true),
            (" file-7-123.000000004", " file-7-123.000000005", false),
            (" file-7-123.000000004", " file-8-123.000000004", false),
            // Another kernel tells the time.
            (" file-7-123.000000004", " file-7", true),
            (" file-7-123.000000004", " file-8", false),
            (" file-my disk-2.img", " file-my disk-2.img-123.000000004", true),
            (" file-my disk-2.img", " file-my disk-3.img", false),
        ] {
            let (known, found) = (Identity::parse(known), Identity::parse(found));
            assert_eq!(found.is_same(known), is_same, "{known:?}, {found:?}");
            assert_eq!(known.is_same(found), is_same, "{found:?}, {known:?}");
        }
    }

    #[test]
    fn the_link_with_the_number_of_the_disk_itself_is_chosen() {
        for (links, expected) in [
            (&["wwn-0x5", "ata-Disk_1"][..], "ata-Disk_1"),
            (&["nvme-eui.01", "nvme-Disk_1", "nvme-uuid.01"], "nvme-Disk_1"),
            (&["scsi-35", "scsi-SVendor_Disk_1", "wwn-0x5"], "wwn-0x5"),
            (&["md-name-host:0", "md-uuid-1"], "md-uuid-1"),
            (&["dm-name-vg-lv", "dm-uuid-LVM-1"], "dm-uuid-LVM-1"),
            (&["wwn-0x5", "usb-Dock-0:0"], "usb-Dock-0:0"),
            (&["scsi-0QEMU_1", "google-disk"], "google-disk"),
            (&[], ""),
        ] {
            assert_eq!(chosen(links.iter().map(|link| link.to_string())), expected);
        }
    }

    #[test]
    fn the_mark_of_a_file_has_the_time_that_its_file_system_tells() {
        assert_eq!(file_mark("7", Some((123, 4))), "file-7-123.000000004");
        assert_eq!(file_mark("disk.img", None), "file-disk.img");
        assert_eq!(file_of("file-7-123.000000004"), Some(("7", Some("123.000000004"))));
        assert_eq!(file_of("file-disk-1.5"), Some(("disk-1.5", None)));
        assert_eq!(file_of("0815 47-11"), None);
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
