//! What the supervisor reports, one JSON object per line.

use std::net::IpAddr;

use serde::Deserialize;

/// A line of the supervisor. Fields of later versions are ignored, and so are events.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    Connected(Cluster),
    /// The cluster can't be used, or no longer.
    Unusable {
        message: String,
        hint: String,
    },
    Joined(OfNode),
    Left(OfNode),
    Restarted(OfNode),
    Failed(OfNode),
    Silent(OfNode),
    Log(OfNode),
    /// It was asked to stop, and no node is left.
    Ended,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Cluster {
    /// Ray's version.
    pub(super) ray: String,
    /// Where its machines reach this one.
    pub(super) address: IpAddr,
    pub(super) nodes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct OfNode {
    /// Ray's id of the machine.
    pub(super) node: String,
    pub(super) address: String,
    #[serde(default)]
    pub(super) why: String,
    #[serde(default)]
    pub(super) line: String,
}

impl OfNode {
    /// Several machines may have one address, as in tests.
    pub(super) fn name(&self) -> String {
        let id: String = self.node.chars().take(6).collect();
        format!("{} ({id})", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Event {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn lines_of_the_supervisor_are_read_and_unknown_ones_ignored() {
        let Event::Connected(cluster) = read(
            r#"{"event": "connected", "ray": "2.60.0", "address": "10.0.0.1", "nodes": 3, "later": 1}"#,
        ) else {
            panic!("another event");
        };
        assert_eq!((cluster.nodes, &*cluster.ray), (3, "2.60.0"));
        let left =
            r#"{"event": "left", "node": "abcdef123", "address": "10.0.0.2", "why": "dead"}"#;
        let Event::Left(node) = read(left) else {
            panic!("another event");
        };
        assert_eq!((&*node.name(), &*node.why), ("10.0.0.2 (abcdef)", "dead"));
        assert_eq!(read(r#"{"event": "ended"}"#), Event::Ended);
        assert_eq!(read(r#"{"event": "news", "x": 1}"#), Event::Unknown);
    }
}
