//! What processes there are, from `/proc`.

pub(crate) use osmosis_testkit::left_processes::is_alive;

/// All processes below this one.
pub(crate) fn children_below(pid: u32) -> Vec<u32> {
    let mut found = vec![];
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            if parent_of(pid) == Some(parent) {
                found.push(pid);
                parents.push(pid);
            }
        }
    }
    found
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("PPid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
