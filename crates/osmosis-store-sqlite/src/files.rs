//! The files of the database as bytes: what SQLite itself would not notice, or would silently take for the end.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt as _;

use camino::{Utf8Path, Utf8PathBuf};

const HEADER_BYTES: usize = 100;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Checks the database's header, whose constant fields SQLite reads without looking twice.
pub(crate) fn check_header(database: &Utf8Path) -> io::Result<Result<(), String>> {
    let mut header = [0; HEADER_BYTES];
    let mut file = File::open(database)?;
    let length = file.metadata()?.len();
    if length == 0 {
        // Only just made.
        return Ok(Ok(()));
    }
    if length < HEADER_BYTES as u64 {
        return Ok(Err("the file ends inside its header".to_owned()));
    }
    file.read_exact(&mut header)?;
    Ok(header_fault(&header).map_or(Ok(()), |fault| {
        Err(format!("the header of the database is wrong: {fault}"))
    }))
}

fn header_fault(header: &[u8; HEADER_BYTES]) -> Option<&'static str> {
    let number = |at: usize| be_u32(&header[at..]);
    let page_size = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65536,
        size => u32::from(size),
    };
    let faults = [
        (
            !header.starts_with(MAGIC),
            "it does not begin as one of SQLite's",
        ),
        (
            !page_size.is_power_of_two() || page_size < 512,
            "its page size",
        ),
        (
            header[18] != header[19] || !matches!(header[18], 1 | 2),
            "its format version",
        ),
        (header[20] != 0, "its reserved space"),
        (header[21..24] != [64, 32, 32], "its payload fractions"),
        (number(44) > 4, "its schema format"),
        (number(48) != 0, "its cache size"),
        (number(52) != 0 || number(64) != 0, "its vacuum mode"),
        (number(56) > 1, "its text encoding"),
        (
            header[72..92].iter().any(|byte| *byte != 0),
            "bytes that are always zero",
        ),
    ];
    faults
        .into_iter()
        .find_map(|(wrong, fault)| wrong.then_some(fault))
}

/// What the write-ahead log ends with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogEnd {
    /// Everything in it is whole; or there is none.
    Whole,
    /// Its last transaction is not: a power cut before it was acknowledged, or damage. Which, nobody can tell.
    Torn,
    /// A transaction is not whole, and others follow it, which were begun after it was on the disk.
    Damaged(String),
}

pub(crate) fn log_of(database: &Utf8Path) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{database}-wal"))
}

const LOG_HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// Follows the checksums of the write-ahead log. SQLite does the same when it opens the database, and takes the
/// first frame that is wrong for the end, whatever comes after it.
pub(crate) fn check_log(database: &Utf8Path) -> io::Result<LogEnd> {
    let file = match File::open(log_of(database)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LogEnd::Whole),
        Err(error) => return Err(error),
    };
    let mut log = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; LOG_HEADER_BYTES];
    if !read_whole(&mut log, &mut header)? {
        return Ok(LogEnd::Whole);
    }
    follow(&mut log, &header)
}

fn follow(log: &mut impl Read, header: &[u8; LOG_HEADER_BYTES]) -> io::Result<LogEnd> {
    let big_endian = be_u32(header) & 1 == 1;
    let page_size = be_u32(&header[8..]) as usize;
    let salts = [be_u32(&header[16..]), be_u32(&header[20..])];
    let stored = [be_u32(&header[24..]), be_u32(&header[28..])];
    let mut sum = Sums::default();
    sum.add(&header[..24], big_endian);
    let header_is_whole = sum.0 == stored
        && matches!(be_u32(header), 0x377f_0682 | 0x377f_0683)
        && be_u32(&header[4..]) == 3_007_000
        && page_size.is_power_of_two()
        && (512..=65536).contains(&page_size);
    if !header_is_whole {
        return bad_header(log, stored, sum);
    }
    let mut frame = vec![0; FRAME_HEADER_BYTES + page_size];
    let mut number = 0_u64;
    let mut end: Option<BadFrame> = None;
    while read_whole(log, &mut frame)? {
        let (head, page) = frame.split_at(FRAME_HEADER_BYTES);
        number += 1;
        let salted = [
            be_u32(&head[8..]) == salts[0],
            be_u32(&head[12..]) == salts[1],
        ];
        let commits = be_u32(&head[4..]) != 0;
        if let Some(bad) = &mut end {
            // Frames of an earlier round of the log follow its end, with other salts.
            if salted.contains(&true) && commits {
                bad.commits_after += 1;
            }
            continue;
        }
        sum.add(&head[..8], big_endian);
        sum.add(page, big_endian);
        let whole = salted == [true; 2] && sum.0 == [be_u32(&head[16..]), be_u32(&head[20..])];
        if !whole {
            end = Some(BadFrame {
                number,
                ours: salted.contains(&true),
                never_written: page.iter().all(|byte| *byte == 0),
                commits_after: u64::from(salted.contains(&true) && commits),
            });
        }
    }
    Ok(match end {
        Some(bad) if bad.commits_after >= 2 => LogEnd::Damaged(format!(
            "frame {} of the write-ahead log is damaged, and whole transactions follow it",
            bad.number
        )),
        Some(bad) if (bad.commits_after == 1 || bad.ours) && !bad.never_written => LogEnd::Torn,
        None | Some(_) => LogEnd::Whole,
    })
}

/// Moves the pages of a damaged log into the database, damaged ones too, up to its last commit. Nothing is known of
/// the result but that it has everything that there was.
pub(crate) fn fold_log(log: &Utf8Path, database: &Utf8Path) -> io::Result<()> {
    let mut log = BufReader::with_capacity(1 << 20, File::open(log)?);
    let mut header = [0; LOG_HEADER_BYTES];
    if !read_whole(&mut log, &mut header)? {
        return Ok(());
    }
    // Ours are always this large; the header may lie.
    let mut frame = vec![0; FRAME_HEADER_BYTES + FOLDED_PAGE];
    let mut salts = None;
    let mut waiting: Vec<(u32, Vec<u8>)> = Vec::new();
    let database = File::options().write(true).open(database)?;
    while read_whole(&mut log, &mut frame)? {
        let (head, page) = frame.split_at(FRAME_HEADER_BYTES);
        let salt = [be_u32(&head[8..]), be_u32(&head[12..])];
        let [first, second] = *salts.get_or_insert(salt);
        if salt[0] != first && salt[1] != second {
            // The header's own are as good as the first frame's; what has neither is of an earlier round.
            let told = [be_u32(&header[16..]), be_u32(&header[20..])];
            if salt[0] != told[0] && salt[1] != told[1] {
                break;
            }
            salts = Some(told);
        }
        waiting.push((be_u32(head), page.to_vec()));
        let pages = be_u32(&head[4..]);
        if pages == 0 {
            continue;
        }
        for (number, page) in waiting.drain(..) {
            // A page that the commit does not know has the wrong number.
            if (1..=pages).contains(&number) {
                database.write_all_at(&page, u64::from(number - 1) * FOLDED_PAGE as u64)?;
            }
        }
    }
    Ok(())
}

const FOLDED_PAGE: usize = 4096;

struct BadFrame {
    number: u64,
    /// One of its salts is of this round of the log.
    ours: bool,
    /// Its page is empty: the frame was begun, and the power was cut.
    never_written: bool,
    commits_after: u64,
}

/// SQLite passes over a log whose header is wrong. If its first frame follows from what the header was, then the
/// header was whole once.
fn bad_header(log: &mut impl Read, stored: [u32; 2], computed: Sums) -> io::Result<LogEnd> {
    let mut rest = Vec::new();
    log.take(FRAME_HEADER_BYTES as u64 + 65536)
        .read_to_end(&mut rest)?;
    for page_size in (9..=16).map(|bits| 1_usize << bits) {
        let Some(page) = rest.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + page_size) else {
            break;
        };
        let told = [be_u32(&rest[16..]), be_u32(&rest[20..])];
        for seed in [Sums(stored), computed] {
            for big_endian in [false, true] {
                let mut sum = seed;
                sum.add(&rest[..8], big_endian);
                sum.add(page, big_endian);
                if sum.0 == told {
                    let message = "the header of the write-ahead log is damaged";
                    return Ok(LogEnd::Damaged(message.to_owned()));
                }
            }
        }
    }
    Ok(LogEnd::Whole)
}

/// The running checksum of a write-ahead log.
#[derive(Debug, Clone, Copy, Default)]
struct Sums([u32; 2]);

impl Sums {
    fn add(&mut self, bytes: &[u8], big_endian: bool) {
        let [mut a, mut b] = self.0;
        for pair in bytes.chunks_exact(8) {
            let word = |at: usize| {
                let bytes = [pair[at], pair[at + 1], pair[at + 2], pair[at + 3]];
                if big_endian {
                    u32::from_be_bytes(bytes)
                } else {
                    u32::from_le_bytes(bytes)
                }
            };
            a = a.wrapping_add(word(0)).wrapping_add(b);
            b = b.wrapping_add(word(4)).wrapping_add(a);
        }
        self.0 = [a, b];
    }
}

fn be_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// `false` where the file ends before the buffer is full.
fn read_whole(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
