//! Just enough of GGUF to read a file's metadata.

use std::fs::File;
use std::io::{BufReader, Read};

use camino::Utf8Path;
use serde_json::{Map, Value, json};

pub(crate) fn read(path: &Utf8Path) -> Map<String, Value> {
    let mut reader = Reader(BufReader::new(File::open(path).unwrap()));
    assert_eq!(&reader.bytes::<4>(), b"GGUF");
    let _version = reader.u32();
    let _tensors = reader.u64();
    let entries = reader.u64();
    (0..entries)
        .map(|_| {
            let name = reader.text();
            let kind = reader.u32();
            (name, reader.value(kind))
        })
        .collect()
}

struct Reader(BufReader<File>);

impl Reader {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn text(&mut self) -> String {
        let mut bytes = vec![0; usize::try_from(self.u64()).unwrap()];
        self.0.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 | 1 | 7 => json!(self.bytes::<1>()[0]),
            2 | 3 => json!(u16::from_le_bytes(self.bytes())),
            4 => json!(self.u32()),
            5 => json!(i32::from_le_bytes(self.bytes())),
            6 => json!(f32::from_le_bytes(self.bytes())),
            8 => json!(self.text()),
            9 => {
                let kind = self.u32();
                let length = self.u64();
                (0..length).map(|_| self.value(kind)).collect()
            }
            10 | 11 => json!(self.u64()),
            12 => json!(f64::from_le_bytes(self.bytes())),
            other => panic!("metadata of type {other}"),
        }
    }
}
