//! Which variables of our environment other processes see: the one list of them.
//!
//! Workers, and the interpreter that is asked what it is, get the [`ALLOWED`] names and nothing else of our
//! environment; what the config passes comes on top ([`crate::Launch::environment`]). What installs packages or
//! builds a project gets its own settings besides. Variables of ours (`OSMOSIS_*`) reach neither.

use std::ffi::OsString;

/// Where we keep our own settings and keys. Never inherited.
const OURS: [&str; 2] = ["OSMOSIS_", "_OSMOSIS_"];

/// Tells a worker to open the debugger on this terminal where user code raises. Not for user code: the worker
/// takes it out of its environment.
pub const DEBUG_VARIABLE: &str = "_OSMOSIS_DEBUG";

/// Names that workers inherit.
pub const ALLOWED: &[&str] = &[
    // Who and where.
    "HOME",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TEMP",
    "TERM",
    "TMP",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    // Languages; `LC_*` too.
    "LANG",
    "LANGUAGE",
    // The network: certificates and proxies.
    "ALL_PROXY",
    "CURL_CA_BUNDLE",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NODE_EXTRA_CA_CERTS",
    "NO_PROXY",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    // How programs are loaded and run; `PYTHON*` and `DYLD_*` too.
    "CONDA_DEFAULT_ENV",
    "CONDA_PREFIX",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "RUST_BACKTRACE",
    "RUST_LIB_BACKTRACE",
    "RUST_LOG",
    "VIRTUAL_ENV",
    // Devices and threads.
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "ROCR_VISIBLE_DEVICES",
    "TOKENIZERS_PARALLELISM",
    "VECLIB_MAXIMUM_THREADS",
    // Where models are kept; the hub's token is not among them.
    "HF_DATASETS_CACHE",
    "HF_DATASETS_OFFLINE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "TORCH_HOME",
    "TRANSFORMERS_CACHE",
    "TRANSFORMERS_OFFLINE",
    // Colours.
    "CLICOLOR",
    "COLORTERM",
    "FORCE_COLOR",
    "NO_COLOR",
];

/// Beginnings of names that workers inherit, unless the end of the name is a secret's.
pub const ALLOWED_PREFIXES: &[&str] = &["LC_", "PYTHON", "DYLD_"];

/// What a name that may hold a secret ends with.
const SECRET_ENDINGS: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS"];

/// What installers and compilers are set up with, credentials of package indexes included.
const TOOL_NAMES: &[&str] = &[
    "AR",
    "CC",
    "CFLAGS",
    "CXX",
    "CXXFLAGS",
    "LD",
    "LDFLAGS",
    "MACOSX_DEPLOYMENT_TARGET",
    "MAKEFLAGS",
    "NETRC",
    "SDKROOT",
    "SSH_AGENT_PID",
    "SSH_AUTH_SOCK",
];
const TOOL_PREFIXES: &[&str] = &[
    "CARGO",
    "__CARGO",
    "CMAKE_",
    "GIT_",
    "PIP_",
    "PKG_CONFIG",
    "RUSTC",
    "RUSTDOC",
    "RUSTFLAGS",
    "RUSTUP_",
    "SCCACHE_",
    "UV_",
];

type Variable = (OsString, OsString);

/// The variables of this process that a worker inherits.
pub(crate) fn for_workers() -> Vec<Variable> {
    chosen(std::env::vars_os(), reaches_workers)
}

/// Those that an installer or a compiler inherits. The environment of the shell that started us is not the one
/// at work there.
pub(crate) fn for_tools() -> Vec<Variable> {
    chosen(std::env::vars_os(), |name| {
        reaches_tools(name) && name != "VIRTUAL_ENV" && name != "PYTHONHOME"
    })
}

fn chosen(
    variables: impl Iterator<Item = Variable>,
    reaches: impl Fn(&str) -> bool,
) -> Vec<Variable> {
    variables
        .filter(|(name, _)| name.to_str().is_some_and(&reaches))
        .collect()
}

/// Whether a worker inherits the variable of this name.
pub fn reaches_workers(name: &str) -> bool {
    ALLOWED.contains(&name) || (begins(name, ALLOWED_PREFIXES) && !is_secret(name))
}

fn reaches_tools(name: &str) -> bool {
    reaches_workers(name) || TOOL_NAMES.contains(&name) || begins(name, TOOL_PREFIXES)
}

/// Read by the loader and by runtimes before `main`, so that they have to stand in the environment.
const READ_BEFORE_MAIN: &[&str] = &[
    "GLIBC_TUNABLES",
    "LLVM_PROFILE_FILE",
    "MALLOC_CONF",
    "RUST_MIN_STACK",
    "_RJEM_MALLOC_CONF",
];

/// Whether the variable of this name may stand in the environment of the engine, which workers can read. What
/// they inherit may.
pub fn may_be_shown(name: &str) -> bool {
    reaches_workers(name) || READ_BEFORE_MAIN.contains(&name)
}

/// The variables of this process for a program beside the workers: all but ours and secrets, because workers can read
/// its environment. Secrets whose names begin with one of `own` are for the program itself.
pub fn for_programs(own: &[&str]) -> Vec<(OsString, OsString)> {
    chosen(std::env::vars_os(), |name| reaches_programs(name, own))
}

fn reaches_programs(name: &str, own: &[&str]) -> bool {
    !is_ours(name) && (!is_secret(name) || begins(name, own))
}

fn is_secret(name: &str) -> bool {
    SECRET_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Whether a variable is a setting or a key of ours.
pub fn is_ours(name: &str) -> bool {
    begins(name, &OURS)
}

/// Of the names that are set, those of a model's key or address that workers don't see; `passed` are the ones that
/// the config passes.
pub fn withheld<'a>(
    set: impl IntoIterator<Item = String>,
    passed: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    let passed: Vec<&str> = passed.into_iter().collect();
    let mut names: Vec<String> = set
        .into_iter()
        .filter(|name| name.ends_with("_API_KEY") || name.ends_with("_BASE_URL"))
        .filter(|name| !is_ours(name) && !reaches_workers(name) && !passed.contains(&&**name))
        .collect();
    names.sort();
    names
}

fn begins(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_inherit_what_programs_need_and_no_keys() {
        for name in [
            "PATH",
            "LC_ALL",
            "PYTHONPATH",
            "https_proxy",
            "SSL_CERT_FILE",
        ] {
            assert!(reaches_workers(name), "{name}");
        }
        for name in [
            "OPENAI_API_KEY",
            "ANTHROPIC_BASE_URL",
            "AWS_SECRET_ACCESS_KEY",
            "HF_TOKEN",
            "PYTHON_PRIVATE_TOKEN",
            "OSMOSIS_CONTROL_KEY",
            "_OSMOSIS_ROLLOUT_PORT",
            "SSH_AUTH_SOCK",
            "UV_INDEX_PASSWORD",
            "path",
        ] {
            assert!(!reaches_workers(name), "{name}");
        }
    }

    #[test]
    fn installers_inherit_their_own_settings_and_nothing_of_ours() {
        for name in [
            "PATH",
            "UV_INDEX_URL",
            "PIP_INDEX_URL",
            "CARGO_HOME",
            "RUSTFLAGS",
        ] {
            assert!(reaches_tools(name), "{name}");
        }
        for name in [
            "OPENAI_API_KEY",
            "OSMOSIS_CONTROL_KEY",
            "AWS_SECRET_ACCESS_KEY",
        ] {
            assert!(!reaches_tools(name), "{name}");
        }
    }

    #[test]
    fn keys_and_addresses_that_are_not_passed_are_named() {
        let set = [
            "OPENAI_API_KEY",
            "OPENAI_BASE_URL",
            "ANTHROPIC_API_KEY",
            "OSMOSIS_API_KEY",
            "DATABASE_URL",
            "PATH",
        ];
        let set = set.map(str::to_owned);
        assert_eq!(
            withheld(set, ["OPENAI_BASE_URL"]),
            ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"]
        );
    }

    #[test]
    fn the_docs_name_every_variable() {
        let docs = include_str!("../../../docs/worker-processes.md");
        let tools = TOOL_NAMES.iter().filter(|name| {
            !name.ends_with("FLAGS")
                && !["MACOSX_DEPLOYMENT_TARGET", "SDKROOT", "SSH_AGENT_PID"].contains(name)
        });
        for name in ALLOWED.iter().chain(tools) {
            assert!(docs.contains(&format!("`{name}`")), "{name}");
        }
        for prefix in ALLOWED_PREFIXES {
            assert!(docs.contains(&format!("`{prefix}*`")), "{prefix}");
        }
        for prefix in TOOL_PREFIXES.iter().filter(|prefix| **prefix != "__CARGO") {
            assert!(docs.contains(&format!("`{prefix}`")), "{prefix}");
        }
    }

    #[test]
    fn no_name_on_the_list_is_one_of_ours_or_listed_twice() {
        for (index, name) in ALLOWED.iter().enumerate() {
            assert!(!is_ours(name), "{name}");
            assert!(!ALLOWED[index + 1..].contains(name), "{name}");
        }
    }
}
