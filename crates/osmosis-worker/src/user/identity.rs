use std::path::Path;

/// The user that workers get where none is named. No system gives this number out (systemd's list of user ids leaves
/// 60706 to 61183 free), and it is below 65536, so that containers with a user namespace have it. `nobody` would be
/// shared with other services, which could then read and signal workers, and be signalled by them.
const OWN_ID: u32 = 60_900;

/// What `USER` and `LOGNAME` are where /etc/passwd does not know the user.
const OWN_NAME: &str = "osmosis-worker";

/// A user other than the engine's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerIdentity {
    pub uid: u32,
    pub gid: u32,
    pub name: String,
}

/// A line of /etc/passwd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownUser {
    name: String,
    uid: u32,
    gid: u32,
}

impl WorkerIdentity {
    /// The engine's own choice; the error names whom the number belongs to here.
    pub(super) fn unprivileged(known: &[KnownUser]) -> Result<Self, String> {
        match known.iter().find(|user| user.uid == OWN_ID) {
            Some(user) if user.name != OWN_NAME => Err(user.name.clone()),
            found => Ok(Self {
                uid: OWN_ID,
                gid: found.map_or(OWN_ID, |user| user.gid),
                name: OWN_NAME.to_owned(),
            }),
        }
    }

    /// Any number will do, known here or not.
    pub(super) fn of_uid(uid: u32, known: &[KnownUser]) -> Self {
        let found = known.iter().find(|user| user.uid == uid);
        Self {
            uid,
            gid: found.map_or(uid, |user| user.gid),
            name: found.map_or_else(|| OWN_NAME.to_owned(), |user| user.name.clone()),
        }
    }

    pub(super) fn of_name(name: &str, known: &[KnownUser]) -> Option<Self> {
        let user = known.iter().find(|user| user.name == name)?;
        Some(Self {
            uid: user.uid,
            gid: user.gid,
            name: user.name.clone(),
        })
    }

    pub(super) const OWN_ID: u32 = OWN_ID;

    /// Of its variables, those that differ from the engine's: `home` and `temporary` are folders of its own, which end
    /// with the pool.
    pub(crate) fn variables(&self, home: &Path, temporary: &Path) -> Vec<(&'static str, String)> {
        vec![
            ("HOME", home.display().to_string()),
            ("TMPDIR", temporary.display().to_string()),
            ("USER", self.name.clone()),
            ("LOGNAME", self.name.clone()),
            // Workers can write to their home: what one leaves there must not be imported by the next.
            ("PYTHONNOUSERSITE", "1".to_owned()),
        ]
    }
}

/// Variables that name folders of the engine's user.
pub(crate) const NOT_INHERITED: [&str; 7] = [
    "TEMP",
    "TMP",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// The users of this machine. Those of a directory service are not among them.
pub(super) fn known_users() -> Vec<KnownUser> {
    let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
    parse(&String::from_utf8_lossy(&passwd))
}

/// `name:password:uid:gid:…`
fn parse(passwd: &str) -> Vec<KnownUser> {
    passwd
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(KnownUser { name, uid, gid })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<KnownUser> {
        parse("root:x:0:0:root:/root:/bin/sh\nagents:x:1001:1002::/:/bin/false\nbroken\n# :x:a:b\n")
    }

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        let agents = WorkerIdentity {
            uid: 1001,
            gid: 1002,
            name: "agents".to_owned(),
        };
        assert_eq!(
            WorkerIdentity::of_name("agents", &known()),
            Some(agents.clone())
        );
        assert_eq!(WorkerIdentity::of_uid(1001, &known()), agents);
        assert_eq!(WorkerIdentity::of_name("nobody", &known()), None);
        let unknown = WorkerIdentity::of_uid(4000, &known());
        assert_eq!((unknown.uid, unknown.gid), (4000, 4000));
        assert_eq!(unknown.name, OWN_NAME);
    }

    #[test]
    fn the_engines_own_choice_is_nobody_elses() {
        let own = WorkerIdentity::unprivileged(&known()).unwrap();
        assert_eq!((own.uid, own.gid), (OWN_ID, OWN_ID));
        let taken = parse(&format!("daemon:x:{OWN_ID}:1::/:/bin/false"));
        assert_eq!(
            WorkerIdentity::unprivileged(&taken),
            Err("daemon".to_owned())
        );
        let made = parse(&format!("{OWN_NAME}:x:{OWN_ID}:7::/:/bin/false"));
        assert_eq!(WorkerIdentity::unprivileged(&made).unwrap().gid, 7);
    }
}
