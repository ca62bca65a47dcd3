// A part of the tests of every crate with a module `fuzzing`: the targets run on their seeds, and on changes of them that
// are the same each time. It finds less than libFuzzer does, and runs in every build.

/// Changes of each seed; `OSMOSIS_FUZZ_CHANGES` asks for more.
const CHANGES: usize = 16;

/// What is fuzzed: a name, and what takes the bytes.
type Target = (&'static str, fn(&[u8]));

/// Runs every target on the inputs that the fuzzers start from, every one that once broke something among
/// them, and on changes of each.
fn run_seeds(targets: &[Target]) {
    let changes = std::env::var("OSMOSIS_FUZZ_CHANGES").ok();
    let changes = changes.map_or(CHANGES, |text| text.parse().unwrap());
    for (name, target) in targets {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/");
        let mut paths: Vec<_> = std::fs::read_dir(format!("{folder}{name}"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        assert!(!paths.is_empty(), "there are no seeds for {name}");
        let seeds: Vec<Vec<u8>> = paths
            .iter()
            .map(|path| std::fs::read(path).unwrap())
            .collect();
        let mut numbers = Numbers(name.len() as u64 + 1);
        for seed in &seeds {
            run_one(name, *target, seed);
            for _ in 0..changes {
                run_one(name, *target, &numbers.change(seed, &seeds));
            }
        }
    }
}

fn run_one(name: &str, target: fn(&[u8]), input: &[u8]) {
    let result = std::panic::catch_unwind(|| target(input));
    if result.is_err() {
        let path = std::env::temp_dir().join(format!("osmosis-fuzz-{name}"));
        std::fs::write(&path, input).unwrap();
        panic!(
            "{name} fails on {}: {:?}",
            path.display(),
            input.escape_ascii().to_string()
        );
    }
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
    }

    fn change(&mut self, seed: &[u8], seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut input = seed.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(input.len() + 1);
            let end = (at + 1 + self.below(8)).min(input.len());
            match self.below(9) {
                0 if at < input.len() => input[at] ^= 1 << self.below(8),
                1 if at < input.len() => {
                    input[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'9'][self.below(8)];
                }
                2 if at < end => drop(input.drain(at..end)),
                3 if at < end => {
                    let part = input[at..end].to_vec();
                    let times = 1 << self.below(9);
                    for _ in 0..times {
                        input.splice(at..at, part.iter().copied());
                    }
                }
                4 => input.truncate(at),
                5 => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len());
                    input.truncate(at);
                    input.extend_from_slice(&other[from.min(other.len())..]);
                }
                6 => {
                    let word: &[u8] = [
                        b"18446744073709551616".as_slice(),
                        b"-1",
                        b"1e999",
                        b"null",
                        b"[[[[[[[[[[[[[[[[",
                        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
                        b"\\ud800",
                        b"\xf0\x9f\xa6\x80",
                    ][self.below(8)];
                    input.splice(at..at, word.iter().copied());
                }
                _ => {
                    let byte = u8::try_from(self.below(256)).unwrap();
                    input.insert(at, byte);
                }
            }
            input.truncate(1 << 16);
        }
        input
    }
}
