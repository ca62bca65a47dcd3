//! `osmosis serve`: rollouts over HTTP, for a training controller elsewhere.

mod stop;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::config::Workers;
use osmosis_gateway::Secret;
use osmosis_run::events::LogOnly;
use osmosis_run::life::{FrontEnd, live};
use osmosis_run::reports::ServedRollouts;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_server::{
    ServerAddress, Serving, ServingLimits, UserSide, UserSideRequest, generate_api_key,
    load_state_key,
};
use osmosis_store::RunKind;

use self::stop::ServeStop;
use crate::arguments::ServeArguments;
use crate::error::Exit;
use crate::gateway::workspace_or_here;
use crate::output::Output;
use crate::policy::variable;
use crate::run_folder::RunFolder;
use crate::runs::{fresh_name, given_name};
use crate::workspace::WorkspaceChoice;

const PORT_VARIABLE: &str = "_OSMOSIS_ROLLOUT_PORT";
/// The key of a server that `create_rollout_server()` makes; the name under which a new key is printed.
const KEY_VARIABLE: &str = "OSMOSIS_ROLLOUT_KEY";
const DRAIN_LIMIT: Duration = Duration::from_mins(10);
/// Who started us waits a minute.
const ATTACHED_DRAIN_LIMIT: Duration = Duration::from_secs(40);

pub(crate) async fn run(
    arguments: ServeArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let address = address(&arguments)?;
    let api_key = ApiKey::of(&arguments, address)?;
    let workspace = workspace_or_here(workspace)?;
    let limits = limits(&arguments);
    let request = UserSideRequest {
        rollout: arguments.rollout,
        entrypoint: arguments.entrypoint,
        pass_env: arguments.pass_env,
        python: arguments.python,
        workers: arguments.workers,
        process_settings: Workers {
            isolation: arguments.isolation,
            user: arguments.workers_user,
        },
    };
    let notices = output.notices();
    notices.step("Checking the project");
    let side = UserSide::check(request, &workspace)?;
    let state_key = load_state_key(arguments.attach, &workspace, &*notices)?;
    let name = match given_name(arguments.name.as_deref())? {
        Some(name) => name,
        None => fresh_name(side.name(), &workspace, RunKind::Serving)?,
    };
    let folder = side.folder(RunFolder::of(&workspace, RunKind::Serving, &name));
    let secret = api_key.secret().cloned();
    let announced = Announced {
        api_key,
        folder: folder.path.clone(),
        output: *output,
    };
    let work = Serving {
        side,
        workspace,
        name,
        folder,
        address,
        api_key: secret,
        state_key,
        limits,
        allowed_hosts: arguments.allow_host,
        allowed_urls: arguments.allow_url,
        serving: Box::new(move |address| announced.tell(address)),
    };
    let stop = ServeStop::listen(arguments.attach)?;
    let front = FrontEnd {
        stop: &stop.signals,
        notices,
        observer: Box::new(LogOnly),
        // The next start goes on by itself.
        resume: None,
        fresh: false,
    };
    let served = live(&work, front).await?;
    Ok(if served.end.stopped_now {
        Exit::Interrupted
    } else {
        Exit::Ok
    })
}

fn limits(arguments: &ServeArguments) -> ServingLimits {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    ServingLimits {
        max_in_flight: arguments.max_in_flight,
        max_queued: arguments.max_queued as usize,
        agent_limit: seconds(arguments.agent_timeout),
        grade_limit: seconds(arguments.grader_timeout),
        drain_limit: match arguments.drain_limit {
            Some(limit) => seconds(limit),
            None if arguments.attach => ATTACHED_DRAIN_LIMIT,
            None => DRAIN_LIMIT,
        },
    }
}

/// What is told of a server when requests can be sent.
struct Announced {
    api_key: ApiKey,
    folder: Utf8PathBuf,
    output: Output,
}

impl Announced {
    /// Says where it is. When attached, before the one worker comes, which needs to know.
    fn tell(&self, address: &ServerAddress<'_>) {
        self.output.line(address.url);
        if let ApiKey::Made(key) = &self.api_key {
            let key = key.expose();
            self.output.line(format_args!("{KEY_VARIABLE}={key}"));
        }
        self.output.operation_line(
            "serving",
            &ServedRollouts {
                url: address.url.to_owned(),
                api_key: match &self.api_key {
                    ApiKey::Made(key) => Some(key.expose().to_owned()),
                    // Who gave it knows it.
                    ApiKey::Given(_) | ApiKey::None => None,
                },
                worker_address: address.worker_address.map(str::to_owned),
                needs_key: self.api_key.secret().is_some(),
                output_path: self.folder.clone(),
            },
        );
    }
}

/// What opens the server.
#[derive(Debug)]
enum ApiKey {
    /// Whoever reaches it may use it.
    None,
    Given(Secret),
    /// It is told to whoever started us.
    Made(Secret),
}

impl ApiKey {
    fn of(arguments: &ServeArguments, address: SocketAddr) -> Result<Self, RunError> {
        if arguments.attach {
            // Controllers of the reference send none.
            let key = variable(KEY_VARIABLE).map(Secret::new);
            return Ok(key.map_or(Self::None, Self::Given));
        }
        if arguments.no_key {
            if address.ip().is_loopback() {
                return Ok(Self::None);
            }
            let message = format!("--no-key: others can reach {address}, and could run rollouts");
            return Err(RunError::usage(RunErrorKind::Usage, message)
                .hint("leave it out, or listen on 127.0.0.1 behind a proxy that asks for a key"));
        }
        let Some(name) = &arguments.api_key_env else {
            return Ok(Self::Made(generate_api_key()));
        };
        match std::env::var(name) {
            Ok(key) if !key.trim().is_empty() => Ok(Self::Given(Secret::new(key))),
            _ => Err(RunError::usage(
                RunErrorKind::Usage,
                format!("--api-key-env: the variable `{name}` is not set"),
            )
            .hint(format!("set `{name}` to the key that controllers send"))),
        }
    }

    fn secret(&self) -> Option<&Secret> {
        match self {
            Self::None => None,
            Self::Given(key) | Self::Made(key) => Some(key),
        }
    }
}

fn address(arguments: &ServeArguments) -> Result<SocketAddr, RunError> {
    if let Some(address) = arguments.listen {
        return Ok(address);
    }
    let port = match std::env::var(PORT_VARIABLE) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let message = format!("{PORT_VARIABLE} is `{text}`, which is no port");
            RunError::usage(RunErrorKind::Usage, message)
        })?,
        Err(_) => 0,
    };
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}
