//! `cargo xtask ci`: the README's test command, and its quick form for daily work.

mod changed;
mod postgres;
mod ray;
mod site;
mod steps;
mod system_packages;
mod viewer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::changed::Changed;
use self::steps::{Order, QUICK_STEPS, STEPS, Step};

pub(crate) use self::site::{cargo, command, root};

use self::site::Site;

/// How long a step took.
type Times = Vec<(&'static str, Duration)>;

/// Every step, or those whose name contains `only`.
pub(crate) fn run(only: Option<&str>) -> Result<()> {
    run_steps(&STEPS, only, Changed::everything()?)
}

/// The steps for daily work: what changed since `base`, and what needs no process of its own.
#[expect(
    clippy::print_stdout,
    reason = "a command line program reports to the terminal"
)]
pub(crate) fn run_quick(base: &str, only: Option<&str>) -> Result<()> {
    let changed = Changed::since(base)?;
    println!("{changed}");
    run_steps(&QUICK_STEPS, only, changed)
}

#[expect(
    clippy::print_stdout,
    reason = "a command line program reports to the terminal"
)]
fn run_steps(all: &[Step], only: Option<&str>, changed: Changed) -> Result<()> {
    let site = Site::new(root()?, changed);
    let steps: Vec<&Step> = all
        .iter()
        .filter(|step| only.is_none_or(|text| step.name.contains(text)))
        .collect();
    if steps.is_empty() {
        bail!(
            "no step has a name that contains `{}`",
            only.unwrap_or_default()
        );
    }
    let began = Instant::now();
    let mut times = in_sequence(&steps, Order::First, &site)?;
    times.extend(side_by_side(&steps, &site)?);
    times.extend(in_sequence(&steps, Order::Last, &site)?);
    println!("\n== all {} steps passed", times.len());
    for (name, time) in times {
        println!("{:>7.1} s  {name}", time.as_secs_f64());
    }
    println!("{:>7.1} s  in all", began.elapsed().as_secs_f64());
    Ok(())
}

fn in_sequence(steps: &[&Step], order: Order, site: &Site) -> Result<Times> {
    let steps = steps.iter().filter(|step| step.order == order);
    steps.map(|step| one(step, site)).collect()
}

/// Python's steps wait for processes much of the time: they run beside what the compiler does, and print when they are done.
#[expect(
    clippy::print_stderr,
    reason = "a command line program reports to the terminal"
)]
fn side_by_side(steps: &[&Step], site: &Site) -> Result<Times> {
    let stop = AtomicBool::new(false);
    let is_alone = !steps.iter().any(|step| step.order == Order::Compiling);
    let beside = site.keeping_output(!is_alone);
    std::thread::scope(|scope| {
        let python = scope.spawn(|| -> Result<Times> {
            let mut times = vec![];
            for step in steps.iter().filter(|step| step.order == Order::Beside) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                times.push(one(step, &beside)?);
            }
            Ok(times)
        });
        let compiled = in_sequence(steps, Order::Compiling, site);
        if let Err(error) = &compiled {
            stop.store(true, Ordering::Relaxed);
            eprintln!("error: {error:#}\nwaiting for the Python step that runs beside it");
        }
        let python = python
            .join()
            .map_err(|_| anyhow::anyhow!("the thread of the Python steps panicked"))?;
        let mut times = compiled?;
        times.extend(python?);
        Ok(times)
    })
}

fn one(step: &Step, site: &Site) -> Result<(&'static str, Duration)> {
    site.say(&format!("\n== {}", step.name));
    let start = Instant::now();
    let done = (step.check)(site).with_context(|| format!("step `{}`", step.name));
    site.show_kept();
    done.map(|()| (step.name, start.elapsed()))
}
