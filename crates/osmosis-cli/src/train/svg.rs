//! The reward curve as a picture.

use std::fmt::Write as _;

use osmosis_run::reports::{HeldOutPoint, HeldOutScore};

use super::held_out_point::numbers_text;
use super::sparkline::scale;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 68.0;
const BOTTOM: f64 = 48.0;
const TRAINING: &str = "#2563eb";
const SAMPLED: &str = "#d97706";
const GREEDY: &str = "#059669";
const DASHES: &str = r#" stroke-dasharray="5 4""#;

/// What is drawn.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Of training, by step.
    pub(crate) rewards: Vec<(u64, f64)>,
    pub(crate) pass_rates: Vec<(u64, f64)>,
    pub(crate) held_out: Vec<HeldOutPoint>,
}

/// Training reward and pass rate as lines; held-out evaluations, sampled and greedy, as points: the reward
/// filled, with its 95% interval, the pass rate hollow.
pub(crate) fn svg(title: &str, lines: &Lines) -> String {
    let picture = Picture::of(lines);
    let mut text = String::new();
    let _ = writeln!(
        text,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#334155">
<title>{title}</title>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>
<text x="{LEFT}" y="24" font-size="15" font-weight="600" fill="#0f172a">{title}</text>"##,
        title = escape(title),
    );
    picture.axes(&mut text);
    legend(&mut text, lines);
    picture.training(&mut text, &lines.rewards, "");
    picture.training(&mut text, &lines.pass_rates, DASHES);
    for point in &lines.held_out {
        picture.held_out(&mut text, point, &point.sampled, SAMPLED);
        if let Some(greedy) = &point.greedy {
            picture.held_out(&mut text, point, greedy, GREEDY);
        }
    }
    text.push_str("</svg>\n");
    text
}

/// Where values come to lie.
struct Picture {
    steps: f64,
    low: f64,
    high: f64,
}

impl Picture {
    fn of(lines: &Lines) -> Self {
        let of_training = || lines.rewards.iter().chain(&lines.pass_rates);
        let mut values: Vec<f64> = of_training().map(|(_, value)| *value).collect();
        for numbers in lines
            .held_out
            .iter()
            .flat_map(|point| [Some(&point.sampled), point.greedy.as_ref()])
            .flatten()
        {
            values.extend(numbers.reward_mean);
            values.extend(numbers.pass_rate);
            values.extend(numbers.reward_ci95.iter().flatten());
        }
        let (low, high) = scale(&values);
        let last = of_training()
            .map(|(step, _)| *step)
            .chain(lines.held_out.iter().map(|point| point.step));
        Self {
            steps: last.max().unwrap_or(1).max(1) as f64,
            low,
            high,
        }
    }

    fn x(&self, step: f64) -> f64 {
        LEFT + step / self.steps * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self, text: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for value in ticks(self.low, self.high, 5.0) {
            let y = self.y(value);
            let _ = writeln!(
                text,
                r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#e2e8f0"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"##,
                LEFT - 8.0,
                y + 4.0,
                crate::figures::number(value),
            );
        }
        for step in ticks(0.0, self.steps, 8.0)
            .into_iter()
            .filter(|step| step.fract() == 0.0)
        {
            let x = self.x(step);
            let _ = writeln!(
                text,
                r##"<line x1="{x:.1}" y1="{bottom}" x2="{x:.1}" y2="{}" stroke="#94a3b8"/><text x="{x:.1}" y="{}" text-anchor="middle">{step}</text>"##,
                bottom + 4.0,
                bottom + 18.0,
            );
        }
        let _ = writeln!(
            text,
            r##"<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#94a3b8"/>
<text x="{:.1}" y="{}" text-anchor="middle">step</text>
<text transform="translate(14 {:.1}) rotate(-90)" text-anchor="middle">mean reward, pass rate</text>"##,
            f64::midpoint(LEFT, right),
            HEIGHT - 8.0,
            f64::midpoint(TOP, bottom),
        );
    }

    fn training(&self, text: &mut String, values: &[(u64, f64)], dashes: &str) {
        let points: Vec<String> = values
            .iter()
            .map(|(step, value)| format!("{:.1},{:.1}", self.x(*step as f64), self.y(*value)))
            .collect();
        if points.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            r#"<polyline points="{}" fill="none" stroke="{TRAINING}" stroke-width="2" stroke-linejoin="round"{dashes}/>"#,
            points.join(" ")
        );
        if let [only] = values {
            let (x, y) = (self.x(only.0 as f64), self.y(only.1));
            let _ = writeln!(
                text,
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{TRAINING}"/>"#
            );
        }
    }

    fn held_out(
        &self,
        text: &mut String,
        point: &HeldOutPoint,
        numbers: &HeldOutScore,
        colour: &str,
    ) {
        let x = self.x(point.step as f64);
        if let Some([low, high]) = numbers.reward_ci95 {
            let (low, high) = (self.y(low), self.y(high));
            let _ = writeln!(
                text,
                r#"<path d="M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h8M{:.1} {high:.1}h8" fill="none" stroke="{colour}" stroke-width="1.5"/>"#,
                x - 4.0,
                x - 4.0,
            );
        }
        let decoding = if colour == GREEDY {
            "greedy"
        } else {
            "sampled"
        };
        let title = format!("step {}, {decoding}: {}", point.step, numbers_text(numbers));
        let hollow = format!(r#"fill="none" stroke="{colour}" stroke-width="1.5""#);
        let filled = format!(r#"fill="{colour}""#);
        for (value, look) in [(numbers.pass_rate, hollow), (numbers.reward_mean, filled)] {
            if let Some(value) = value {
                let _ = writeln!(
                    text,
                    r#"<circle cx="{x:.1}" cy="{:.1}" r="4" {look}><title>{title}</title></circle>"#,
                    self.y(value),
                );
            }
        }
    }
}

fn legend(text: &mut String, lines: &Lines) {
    let mut entry = |place: (f64, f64), mark: &str, label: &str| {
        let x = WIDTH - RIGHT - 500.0 + place.0;
        let _ = writeln!(
            text,
            r#"<g transform="translate({x:.1} {:.1})">{mark}<text x="26" y="0">{label}</text></g>"#,
            place.1,
        );
    };
    if !lines.rewards.is_empty() || !lines.pass_rates.is_empty() {
        for (x, dashes, label) in [(0.0, "", "training, reward"), (140.0, DASHES, "pass rate")] {
            let mark =
                format!(r#"<path d="M0 -4H20" stroke="{TRAINING}" stroke-width="2"{dashes}/>"#);
            entry((x, 38.0), &mark, label);
        }
    }
    let mut held_out = |x: f64, colour: &str, label: &str| {
        let mark = format!(
            r#"<circle cx="4" cy="-4" r="4" fill="{colour}"/><circle cx="16" cy="-4" r="4" fill="none" stroke="{colour}" stroke-width="1.5"/>"#
        );
        entry((x, 56.0), &mark, label);
    };
    if !lines.held_out.is_empty() {
        held_out(
            0.0,
            SAMPLED,
            "held out, sampled: reward with 95% interval, pass rate",
        );
    }
    if lines.held_out.iter().any(|point| point.greedy.is_some()) {
        held_out(350.0, GREEDY, "greedy");
    }
}

/// Round values from low to high, about as many as wanted.
fn ticks(low: f64, high: f64, wanted: f64) -> Vec<f64> {
    let rough = (high - low) / wanted;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (low / step).ceil();
    let last = (high / step + 1e-9).floor();
    let mut found = vec![];
    let mut place = first;
    while place <= last {
        found.push(place * step);
        place += 1.0;
    }
    found
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::held_out_point::tests::point;
    use super::*;

    #[test]
    fn a_curve_becomes_a_picture() {
        let of_step = |step: u64| 0.1 + step as f64 / 40.0;
        let lines = Lines {
            rewards: (1..=20).map(|step| (step, of_step(step))).collect(),
            pass_rates: (1..=20).map(|step| (step, of_step(step) - 0.05)).collect(),
            held_out: vec![
                point(0, of_step(0), Some(0.05)),
                point(20, of_step(20), Some(0.8)),
            ],
        };
        let text = svg("a <run>", &lines);
        assert!(text.contains("<title>a &lt;run&gt;</title>"), "{text}");
        for colour in [SAMPLED, GREEDY] {
            let filled = format!("r=\"4\" fill=\"{colour}\"");
            assert_eq!(text.matches(&filled).count(), 3, "legend and two points");
        }
        assert!(text.contains("2 of 100 failed"), "{text}");
        assert!(text.contains("<polyline"), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn ticks_are_round() {
        let shown = |low, high| {
            ticks(low, high, 5.0)
                .iter()
                .map(|t| format!("{t:.1}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(0.0, 1.0), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(shown(-1.0, 3.0), ["-1.0", "0.0", "1.0", "2.0", "3.0"]);
    }
}
