//! The reward curve as a picture.

use std::fmt::Write as _;

use super::curve::HeldOutPoint;
use super::sparkline::scale;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 48.0;
const TRAINING: &str = "#2563eb";
const HELD_OUT: &str = "#d97706";

/// Training reward as a line, held-out evaluations as points with their 95% intervals.
pub(crate) fn svg(title: &str, rewards: &[(u64, f64)], held_out: &[HeldOutPoint]) -> String {
    let picture = Picture::of(rewards, held_out);
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
    picture.legend(&mut text, !rewards.is_empty(), !held_out.is_empty());
    picture.training(&mut text, rewards);
    picture.held_out(&mut text, held_out);
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
    fn of(rewards: &[(u64, f64)], held_out: &[HeldOutPoint]) -> Self {
        let mut values: Vec<f64> = rewards.iter().map(|(_, reward)| *reward).collect();
        for point in held_out {
            values.push(point.mean);
            values.extend(point.interval.iter().flat_map(|i| [i.low, i.high]));
        }
        let (low, high) = scale(&values);
        let last = rewards
            .iter()
            .map(|(step, _)| *step)
            .chain(held_out.iter().map(|point| point.step));
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
<text transform="translate(14 {:.1}) rotate(-90)" text-anchor="middle">mean reward</text>"##,
            f64::midpoint(LEFT, right),
            HEIGHT - 8.0,
            f64::midpoint(TOP, bottom),
        );
    }

    fn legend(&self, text: &mut String, training: bool, held_out: bool) {
        let mut x = self.x(self.steps) - 284.0;
        let mut entry = |mark: &str, label: &str, width: f64| {
            let _ = writeln!(
                text,
                r#"<g transform="translate({x:.1} 38)">{mark}<text x="26" y="0">{label}</text></g>"#
            );
            x += width;
        };
        if training {
            let mark = format!(r#"<path d="M0 -4H20" stroke="{TRAINING}" stroke-width="2"/>"#);
            entry(&mark, "training", 90.0);
        }
        if held_out {
            let mark = format!(r#"<circle cx="10" cy="-4" r="4" fill="{HELD_OUT}"/>"#);
            entry(&mark, "held-out rows, 95% interval", 0.0);
        }
    }

    fn training(&self, text: &mut String, rewards: &[(u64, f64)]) {
        let points: Vec<String> = rewards
            .iter()
            .map(|(step, reward)| format!("{:.1},{:.1}", self.x(*step as f64), self.y(*reward)))
            .collect();
        if points.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            r#"<polyline points="{}" fill="none" stroke="{TRAINING}" stroke-width="2" stroke-linejoin="round"/>"#,
            points.join(" ")
        );
        if let [only] = rewards {
            let (x, y) = (self.x(only.0 as f64), self.y(only.1));
            let _ = writeln!(
                text,
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{TRAINING}"/>"#
            );
        }
    }

    fn held_out(&self, text: &mut String, points: &[HeldOutPoint]) {
        for point in points {
            let x = self.x(point.step as f64);
            if let Some(interval) = point.interval {
                let (low, high) = (self.y(interval.low), self.y(interval.high));
                let _ = writeln!(
                    text,
                    r#"<path d="M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h8M{:.1} {high:.1}h8" fill="none" stroke="{HELD_OUT}" stroke-width="1.5"/>"#,
                    x - 4.0,
                    x - 4.0,
                );
            }
            let _ = writeln!(
                text,
                r#"<circle cx="{x:.1}" cy="{:.1}" r="4" fill="{HELD_OUT}"><title>step {}: {}</title></circle>"#,
                self.y(point.mean),
                point.step,
                crate::figures::number(point.mean),
            );
        }
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
    use super::*;
    use osmosis_core::statistics::Interval;

    #[test]
    fn a_curve_becomes_a_picture() {
        let held_out = [0_u64, 20].map(|step| HeldOutPoint {
            step,
            mean: 0.1 + step as f64 / 40.0,
            interval: Some(Interval {
                low: 0.05 + step as f64 / 40.0,
                high: 0.2 + step as f64 / 40.0,
            }),
            pass_rate: None,
            rollouts: 100,
        });
        let rewards: Vec<(u64, f64)> = (1..=20)
            .map(|step| (step, 0.1 + step as f64 / 40.0))
            .collect();
        let text = svg("a <run>", &rewards, &held_out);
        assert!(text.contains("<title>a &lt;run&gt;</title>"), "{text}");
        assert_eq!(
            text.matches("r=\"4\" fill=\"#d97706\"").count(),
            3,
            "legend and two points"
        );
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
