//! Tests with files. The virtual machine has block devices.

use super::*;
use bytes::Bytes;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, PartnerError, Pull, Pulled,
    Pushed,
};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testkit::partner::{Harness, conforms};
use wire::formats::block::{ANSWER_BYTES, Answer, Command, Failure, FromDisk, Request, ToDisk};

/// A file with the bytes of a disk.
pub(crate) struct DiskFile(pub(crate) PathBuf);

impl DiskFile {
    pub(crate) fn new(bytes: u64) -> DiskFile {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("outboard-disk-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        DiskFile(path)
    }

    pub(crate) fn open(&self, write: bool) -> Result<Opened, DeviceError> {
        let options = if write { ",write=true" } else { "" };
        let (_, spec) =
            crate::spec::parse(&format!("block:{}{options}", self.0.display()), Role::Device).unwrap();
        Block.open(&spec, Role::Device, None)
    }

    pub(crate) fn partner(&self) -> Box<dyn Partner> {
        // A process that another test starts has all descriptors until its exec, and with them the lock of the last opening.
        let busy = |opened: &Result<Opened, DeviceError>| matches!(opened, Err(DeviceError::Os { error, .. }) if error.kind() == std::io::ErrorKind::ResourceBusy);
        let (mut opened, began) = (self.open(true), Instant::now());
        while busy(&opened) && began.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
            opened = self.open(true);
        }
        Block.partner(opened.unwrap()).unwrap()
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub(crate) fn open_flows(partner: &mut dyn Partner) {
    for direction in [Direction::Out, Direction::In] {
        let template = FlowTemplate { direction, format: Format::Block, class: FlowClass::Reliable };
        partner.open(&template, &Attributes::default()).unwrap();
    }
}

struct Disk {
    partner: Box<dyn Partner>,
    file: DiskFile,
    fed: u64,
}

fn request(id: u64, command: Command, offset: u64, length: u32) -> Request {
    Request { id, command, force: false, keep_space: false, offset, length }
}

impl Disk {
    fn new() -> Disk {
        let file = DiskFile::new(1 << 20);
        let mut disk = Disk { partner: file.partner(), file, fed: 0 };
        open_flows(disk.partner.as_mut());
        assert_eq!(disk.next().0, FromDisk::Ready);
        disk
    }

    fn begun() -> Disk {
        let mut disk = Disk::new();
        disk.push(ToDisk::Begin { number: 7 }, &[]);
        assert!(matches!(disk.next().0, FromDisk::Described { number: 7, .. }));
        disk
    }

    fn try_push(&mut self, message: ToDisk, data: &[u8]) -> Result<(), PartnerError> {
        let message = Message::new(crate::stream::now(), Body::from([&message.to_bytes(), data].concat()));
        match self.partner.push(FlowKey::DEFAULT, message) {
            Ok(Pushed::Taken) => Ok(()),
            Ok(Pushed::Full(_)) => panic!("it is full"),
            Err((error, _)) => Err(error),
        }
    }

    fn push(&mut self, message: ToDisk, data: &[u8]) {
        self.try_push(message, data).unwrap();
    }

    /// Waits for the next message: its header, its data.
    fn next(&mut self) -> (FromDisk, Vec<u8>) {
        loop {
            if let Pulled::Message(_, message) = self.partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap() {
                let bytes = message.body.into_bytes().to_vec();
                let front = &bytes[..bytes.len().min(FromDisk::HEADER_BYTES_MAX)];
                let parsed = FromDisk::parse(front, bytes.len()).unwrap();
                let data = bytes.get(ANSWER_BYTES..).filter(|_| matches!(parsed, FromDisk::Answer(_)));
                return (parsed, data.unwrap_or_default().to_vec());
            }
            std::thread::yield_now();
        }
    }

    fn ask(&mut self, request: Request, data: &[u8]) -> Result<Vec<u8>, Failure> {
        self.push(ToDisk::Request(request), data);
        let (FromDisk::Answer(Answer { id, result }), data) = self.next() else { panic!("an answer") };
        assert_eq!(id, request.id);
        result.map(|()| data)
    }
}

#[test]
fn a_disk_does_each_request() {
    let mut disk = Disk::begun();
    let data = vec![7; 8192];
    assert_eq!(disk.ask(request(1, Command::Write, 4096, 8192), &data), Ok(vec![]));
    assert_eq!(disk.ask(request(2, Command::Read, 4096, 8192), &[]), Ok(data.clone()));
    assert_eq!(disk.ask(request(3, Command::Flush, 0, 0), &[]), Ok(vec![]));
    let forced = Request { force: true, ..request(4, Command::Write, 0, 4) };
    assert_eq!(disk.ask(forced, b"abcd"), Ok(vec![]));
    for keep_space in [false, true] {
        assert_eq!(disk.ask(request(5, Command::Write, 4096, 4096), &data[..4096]), Ok(vec![]));
        let zeroes = Request { keep_space, ..request(6, Command::Zeroes, 4096, 4096) };
        assert_eq!(disk.ask(zeroes, &[]), Ok(vec![]));
        assert_eq!(disk.ask(request(7, Command::Read, 4096, 4096), &[]), Ok(vec![0; 4096]));
    }
    assert_eq!(disk.ask(request(8, Command::Trim, 8192, 4096), &[]), Ok(vec![]));
    assert_eq!(disk.ask(request(9, Command::Write, 1 << 20, 4096), &data[..4096]), Err(Failure::NoSpace));
    assert_eq!(disk.ask(request(10, Command::Read, (1 << 20) - 1, 2), &[]), Err(Failure::Invalid));
    let mut seen = [0; 8];
    fs::File::open(&disk.file.0).unwrap().read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"abcd\0\0\0\0");
}

#[test]
fn requests_before_the_beginning_are_dropped() {
    let mut disk = Disk::new();
    disk.push(ToDisk::Request(request(1, Command::Write, 0, 4)), b"old!");
    disk.push(ToDisk::Begin { number: 8 }, &[]);
    let (described, _) = disk.next();
    let FromDisk::Described { number: 8, geometry, .. } = described else { panic!("{described:?}") };
    assert_eq!((geometry.size_bytes, geometry.abilities.read_only), (1 << 20, false));
    assert_eq!(disk.ask(request(2, Command::Read, 0, 4), &[]), Ok(vec![0; 4]));
}

#[test]
fn a_new_beginning_follows_all_answers() {
    let mut disk = Disk::begun();
    for id in 0..50 {
        disk.push(ToDisk::Request(request(id, Command::Write, id * 4096, 4096)), &[id as u8; 4096]);
    }
    disk.push(ToDisk::Begin { number: 9 }, &[]);
    let mut ids: Vec<u64> = Vec::new();
    loop {
        match disk.next().0 {
            FromDisk::Answer(answer) => ids.push(answer.id),
            FromDisk::Described { number, .. } => break assert_eq!(number, 9),
            FromDisk::Ready => panic!("it began before"),
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
}

#[test]
fn only_the_last_beginning_is_answered() {
    let mut disk = Disk::begun();
    (100..200).for_each(|number| disk.push(ToDisk::Begin { number }, &[]));
    assert!(matches!(disk.next().0, FromDisk::Described { number: 199, .. }));
    assert!(matches!(disk.partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap(), Pulled::Nothing));
}

#[test]
fn a_disk_is_another_instance_only_once_writes_may_be_lost() {
    let (file, other) = (DiskFile::new(1 << 20), DiskFile::new(1 << 20));
    let instance = |file: &DiskFile| instance(&file.open(false).unwrap().description);
    let first = instance(&file);
    assert_eq!(instance(&file), first);
    assert_ne!(instance(&other), first);
}

#[test]
fn invalid_messages_are_refused() {
    let mut disk = Disk::begun();
    for (body, part) in
        [(vec![], "kind"), (vec![9], "kind"), (request(1, Command::Write, 0, 4).to_bytes().to_vec(), "data")]
    {
        let message = Message::new(crate::stream::now(), Body::from(body));
        let (error, _) = disk.partner.push(FlowKey::DEFAULT, message).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// A file that is truncated stands for an unplugged disk: its size is 0, and no call says that it is gone.
#[test]
fn an_unplugged_disk_is_gone_and_answers_nothing() {
    let mut disk = Disk::begun();
    fs::OpenOptions::new().write(true).open(&disk.file.0).unwrap().set_len(0).unwrap();
    disk.push(ToDisk::Request(request(1, Command::Read, 0, 4096)), &[]);
    let error = loop {
        match disk.partner.pull(FlowKey::DEFAULT, Pull::Yours) {
            Ok(Pulled::Nothing) => std::thread::yield_now(),
            Ok(_) => panic!("an answer"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PartnerError::Gone(_)), "{error}");
}

#[test]
fn each_request_tells_an_unplugged_disk_from_one_that_is_full_or_cannot_trim() {
    let zeroes = Body::from(vec![0; 4096]);
    // The kernel refuses this range, as it does for all ranges of a disk that is unplugged.
    let trim = request(2, Command::Trim, 1 << 63, 4096);
    for (size_bytes, written, trimmed) in
        [(0, Err(Failure::NoSpace), Ok(Bytes::new())), (1, Err(Failure::Gone), Err(Failure::Gone))]
    {
        let storage = |path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            Storage::new(file.into(), size_bytes, 0)
        };
        let write = request(1, Command::Write, 0, 4096);
        assert_eq!(storage(Path::new("/dev/full")).perform(&write, &zeroes), written);
        let empty = DiskFile::new(0);
        assert_eq!(storage(&empty.0).perform(&trim, &Body::new()), trimmed);
    }
}

/// A loop device, which only root can make.
struct Loop(String);

impl Loop {
    fn new(file: &DiskFile, options: &[&str]) -> Option<Loop> {
        let mut command = std::process::Command::new("losetup");
        let made = command.args(["--find", "--show"]).args(options).arg(&file.0).output();
        let made = made.ok().filter(|made| made.status.success())?;
        Some(Loop(String::from_utf8(made.stdout).unwrap().trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_device_that_the_kernel_protects_is_refused_for_writing() {
    let file = DiskFile::new(1 << 20);
    let Some(device) = Loop::new(&file, &["--read-only"]) else {
        return println!("skipped: no loop device");
    };
    let open = |options: &str| {
        let (_, spec) = crate::spec::parse(&format!("block:{}{options}", device.0), Role::Device).unwrap();
        Block.open(&spec, Role::Device, None)
    };
    let refused = open(",write=true").unwrap_err().to_string();
    assert!(refused.contains("it is read-only: share it without `write=true`"), "{refused}");
    assert!(open("").is_ok());
}

#[test]
fn the_line_for_users_tells_long_sectors() {
    let geometry = |block_bytes| Geometry {
        size_bytes: 4 << 40,
        block_bytes,
        preferred_bytes: 4096,
        abilities: Abilities::default(),
    };
    let properties = |block_bytes| Properties {
        geometry: geometry(block_bytes),
        instance: 0,
        name: "sdb".into(),
        identity: String::new(),
    };
    let long = "sdb (disk, 4 TiB, sectors of 4096 bytes, read and write)";
    assert_eq!(properties(4096).summary("iscsi"), long);
    assert_eq!(properties(512).summary("iscsi"), "sdb (disk, 4 TiB, read and write)");
    let whole = "sdb (disk, 4 TiB, requests of whole 4096 bytes, read and write)";
    assert_eq!(properties(4096).summary("nbd"), whole, "its sectors may have 512 bytes");
    let file = DiskFile::new(1 << 20);
    assert!(!file.open(false).unwrap().description.summary.contains("sectors"));
    let Some(device) = Loop::new(&file, &["--sector-size", "4096"]) else {
        return println!("skipped: no loop device");
    };
    let (_, spec) = crate::spec::parse(&format!("block:{}", device.0), Role::Device).unwrap();
    let description = Block.open(&spec, Role::Device, None).unwrap().description;
    let name = Properties::of(&description).unwrap().name;
    assert!(name.ends_with(", sectors of 4096 bytes"), "{name}");
}

/// Repeats an opening for a minute until its error suits, which is empty if it succeeds. udev looks at a disk after each change, and has it
/// open meanwhile.
fn settled(
    open: impl Fn() -> Result<Opened, DeviceError>,
    suits: impl Fn(&str) -> bool,
) -> Result<Opened, String> {
    let began = Instant::now();
    loop {
        let opened = open().map_err(|error| error.to_string());
        let is_settled = suits(opened.as_ref().err().map_or("", String::as_str));
        if is_settled || began.elapsed() > Duration::from_secs(60) {
            return opened;
        }
        drop(opened);
        // Its end makes udev look again.
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn instance(known: &Description) -> u64 {
    Properties::of(known).unwrap().instance
}

#[test]
fn a_block_device_discards_whole_blocks_and_is_refused_once_it_has_another_medium() {
    let (file, other) = (DiskFile::new(1 << 20), DiskFile::new(1 << 20));
    fs::write(&file.0, vec![7; 1 << 20]).unwrap();
    let Some(device) = Loop::new(&file, &[]) else { return println!("skipped: no loop device") };
    let (_, spec) = crate::spec::parse(&format!("block:{},write=true", device.0), Role::Device).unwrap();
    let storage = |opened: Opened, instance| {
        let [disk] = plain::descriptors(opened).unwrap();
        Storage::new(disk, 1 << 20, instance)
    };
    let opened = Block.open(&spec, Role::Device, None).unwrap();
    let known = opened.description.clone();
    let first = storage(opened, instance(&known));
    assert!(first.perform(&request(1, Command::Trim, 1, 16384), &Body::new()).is_ok());
    let read = first.perform(&request(2, Command::Read, 0, 16896), &Body::new()).unwrap();
    assert!(read[..512] == [7; 512] && read[512..16384] == [0; 15872] && read[16384..] == [7; 512]);
    drop(first);
    let reopened =
        || settled(|| Block.reopen(&spec, Role::Device, &known), |error| !error.contains("udev still"));
    assert!(reopened().is_ok(), "it was not unplugged");
    let path = device.0.clone();
    drop(device);
    // A program that has it open keeps the medium.
    let is_empty = |error: &str| error.contains("the drive is empty");
    let empty = settled(|| Block.open(&spec, Role::Device, None), is_empty).map(drop);
    let again = std::process::Command::new("losetup").arg(&path).arg(&other.0).status().unwrap();
    let _device = Loop(path);
    if !again.success() {
        return println!("skipped: another program has the loop device");
    }
    let empty = empty.unwrap_err();
    assert!(empty.contains("the drive is empty") && !empty.contains("truncate"), "{empty}");
    let error = reopened().unwrap_err();
    assert!(error.contains("share it again"), "{error}");
    let opened = Block.open(&spec, Role::Device, None).unwrap();
    let found = opened.description.clone();
    assert_ne!(instance(&found), instance(&known));
    if sys::disk::sequence(&opened.descriptors[0]).is_none() {
        return println!("skipped: this kernel does not count media");
    }
    // A descriptor from before the change works on with the other medium.
    let (write, read) = (request(3, Command::Write, 0, 4), request(4, Command::Read, 0, 4));
    let swapped = storage(opened.try_clone().unwrap(), instance(&known));
    assert_eq!(swapped.perform(&write, &Body::from(vec![1; 4])), Err(Failure::Gone));
    assert!(
        swapped.read_at_once(&read).is_none() && swapped.perform(&read, &Body::new()) == Err(Failure::Gone)
    );
    let own = storage(opened, instance(&found));
    assert_eq!(own.perform(&read, &Body::new()), Ok(Bytes::from_static(&[0; 4])), "the write was not done");
    assert!(own.perform(&write, &Body::from(vec![1; 4])).is_ok());
}

#[test]
fn a_disk_that_is_described_anew_has_to_be_the_same_one() {
    let (file, other) = (DiskFile::new(1 << 20), DiskFile::new(1 << 20));
    let known = file.open(false).unwrap().description;
    let check = |class: &str, change: &dyn Fn(&mut Properties)| {
        let mut properties = Properties::of(&known).unwrap();
        change(&mut properties);
        Block.check_same(&known, &describe(class, &properties))
    };
    let identity = Properties::of(&known).unwrap().identity;
    assert!(identity.starts_with(" file-"), "{identity}");
    assert_eq!(check("block", &|_| {}), Ok(()));
    assert_eq!(check("block", &|disk| disk.instance += 1), Ok(()), "its host has restarted");
    assert_eq!(check("block", &|disk| disk.geometry.abilities.read_only = false), Ok(()));
    assert_eq!(check("block", &|disk| disk.identity = String::new()), Ok(()), "it was not unplugged");
    let another = |disk: &mut Properties| (disk.instance, disk.identity) = (1, " file-7".into());
    for (class, change, part) in [
        ("block", &another as &dyn Fn(&mut Properties), "serial number"),
        ("block", &|disk| disk.geometry.size_bytes *= 2, "2097152 bytes instead of 1048576"),
        ("block", &|disk| disk.geometry.block_bytes = 512, "512 bytes instead of 1"),
        ("nbd", &|_| {}, "`nbd` instead of `block`"),
    ] {
        let error = check(class, change).unwrap_err();
        assert!(error.contains(part) && error.contains("share it again"), "{error}");
    }
    assert!(Block.check_same(&known, &other.open(false).unwrap().description).is_err());
    fs::rename(&other.0, &file.0).unwrap();
    assert!(
        Block.check_same(&known, &file.open(false).unwrap().description).is_err(),
        "another file has its path"
    );
}

#[test]
fn a_disk_of_a_build_without_identities_is_not_another_one() {
    let file = DiskFile::new(1 << 20);
    let known = Properties::of(&file.open(false).unwrap().description).unwrap();
    let disk = |class: &str, identity: &str, size_bytes| {
        let geometry = Geometry { size_bytes, ..known.geometry };
        let identity = identity.into();
        describe(class, &Properties { geometry, instance: 0, identity, ..known.clone() })
    };
    let size = known.geometry.size_bytes;
    for (class, before, now, is_same) in [
        ("nbd", "", "", true),
        ("nbd", "", "//store/disk", true),
        ("nbd", "//store/disk", "//store/other", false),
        ("iscsi", "//store/iqn/1", "", true),
        ("block", "", " file-7", true),
        ("block", " file-7", "", true),
        ("block", " file-7", " file-8", false),
        // Two disks without a serial number and without content.
        ("block", "", "", false),
        ("block", "", "ata-Disk_1", false),
    ] {
        let (before, now) = (disk(class, before, size), disk(class, now, size));
        assert_eq!(Block.check_same(&before, &now).is_ok(), is_same, "{class}: {before:?}, {now:?}");
    }
    assert!(Block.check_same(&disk("nbd", "", size), &disk("nbd", "", size * 2)).is_err());
}

#[test]
fn a_file_that_is_written_has_one_user() {
    let file = DiskFile::new(1 << 20);
    let reader = file.open(false).unwrap();
    assert!(file.open(false).is_ok(), "several readers");
    let error = file.open(true).unwrap_err().to_string();
    assert!(error.contains("another program"), "{error}");
    drop(reader);
    let _writer = file.open(true).unwrap();
    assert!(file.open(false).is_err());
}

#[test]
fn only_disks_and_files_with_bytes_are_opened() {
    for (target, part) in
        [("/dev/null", "neither a disk"), ("/tmp", "neither a disk"), ("/no/such", "outboard devices")]
    {
        let (_, spec) = crate::spec::parse(&format!("block:{target}"), Role::Device).unwrap();
        let error = Block.open(&spec, Role::Device, None).unwrap_err().to_string();
        assert!(error.contains(part), "{target}: {error}");
    }
    let error = DiskFile::new(0).open(false).unwrap_err().to_string();
    assert!(error.contains("it is empty"), "{error}");
}

#[test]
fn a_disk_that_the_unit_of_the_service_denies_needs_no_group() {
    for write in [false, true] {
        assert!(advice(Errno::ACCESS, write).unwrap().contains("group `disk`"));
        let denied = advice(Errno::PERM, write).unwrap();
        assert!(denied.contains("DeviceAllow=") && !denied.contains("group"), "{denied}");
    }
}

#[test]
fn a_read_only_disk_refuses_writes() {
    let file = DiskFile::new(1 << 20);
    let opened = file.open(false).unwrap();
    assert!(opened.description.summary.contains("1 MiB, read-only"), "{}", opened.description.summary);
    assert_eq!(Block.kind(&opened.description).unwrap(), Kind::Disk);
    let mut disk = Disk { partner: Block.partner(opened).unwrap(), file, fed: 0 };
    open_flows(disk.partner.as_mut());
    disk.push(ToDisk::Begin { number: 1 }, &[]);
    assert_eq!(disk.next().0, FromDisk::Ready);
    assert!(matches!(disk.next().0, FromDisk::Described { .. }));
    assert_eq!(disk.ask(request(1, Command::Write, 0, 4), b"abcd"), Err(Failure::Forbidden));
    assert_eq!(disk.ask(request(2, Command::Flush, 0, 0), &[]), Ok(vec![]));
}

impl Harness for Disk {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        Some(FlowTemplate { direction, format: Format::Block, class: FlowClass::Reliable })
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        // The partner produces answers only: to a read of a number that the file has.
        self.fed += 1;
        let file = fs::OpenOptions::new().write(true).open(&self.file.0).unwrap();
        file.write_all_at(&self.fed.to_le_bytes(), 1 << 19).unwrap();
        let template = self.template(Direction::In).unwrap();
        self.partner.open(&template, &Attributes::default()).unwrap();
        self.push(ToDisk::Request(request(self.fed, Command::Read, 1 << 19, 8)), &[]);
        let answer = Answer { id: self.fed, result: Ok(()) };
        Some([&answer.to_bytes()[..], &self.fed.to_le_bytes()].concat())
    }

    fn end(&mut self) -> bool {
        false
    }

    fn body(&self, number: u64) -> Vec<u8> {
        let request = request(1 << 32 | number, Command::Write, number * 8 % (1 << 18), 8);
        [&request.to_bytes()[..], &number.to_le_bytes()].concat()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        // Answers make room. They come in any order, so they tell nothing about the order of requests.
        let template = self.template(Direction::Out).unwrap();
        self.partner.open(&template, &Attributes::default()).unwrap();
        while let Pulled::Message(..) = self.partner.pull(FlowKey::DEFAULT, Pull::Yours).unwrap() {}
        None
    }
}

#[test]
fn the_partner_conforms() {
    conforms(|| {
        let file = DiskFile::new(1 << 20);
        let mut disk = Disk { partner: file.partner(), file, fed: 0 };
        // The suite opens the flows itself, and knows no beginning.
        open_flows(disk.partner.as_mut());
        disk.push(ToDisk::Begin { number: 1 }, &[]);
        assert_eq!(disk.next().0, FromDisk::Ready);
        assert!(matches!(disk.next().0, FromDisk::Described { .. }));
        for flow in [crate::flows::IN, crate::flows::OUT] {
            disk.partner.close(flow).unwrap();
        }
        disk
    });
}

#[test]
fn a_finished_partner_has_done_its_work() {
    let mut disk = Disk::begun();
    disk.push(ToDisk::Request(request(1, Command::Write, 0, 4)), b"last");
    while matches!(disk.partner.ctl(crate::flows::IN, Ctl::Finish).unwrap(), CtlReply::Pending) {
        std::thread::yield_now();
    }
    let mut seen = [0; 4];
    fs::File::open(&disk.file.0).unwrap().read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"last");
}

#[test]
fn a_stopped_disk_ends_its_requests() {
    let file = DiskFile::new(64 << 20);
    let disk = fs::OpenOptions::new().write(true).open(&file.0).unwrap();
    disk.write_all_at(b"content", 32 << 20).unwrap();
    let storage = Storage::new(disk.into(), 64 << 20, 0);
    let zero = |storage: &Storage| storage.perform(&request(1, Command::Zeroes, 5, 60 << 20), &Body::new());
    let content = || fs::read(&file.0).unwrap()[32 << 20..][..7].to_vec();
    storage.stop();
    assert!(zero(&storage).is_err() && content() == b"content");
    let write = request(2, Command::Write, 32 << 20, 4);
    assert!(storage.perform(&write, &Body::from(vec![1; 4])).is_err() && content() == b"content");
    let disk = fs::OpenOptions::new().write(true).open(&file.0).unwrap();
    assert!(zero(&Storage::new(disk.into(), 64 << 20, 0)).is_ok() && content() == [0; 7]);
}
