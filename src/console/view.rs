//! How it looks, for a terminal of any size; colours are never all that says something.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState, Wrap};

use super::clean;
use super::picture::{Picture, Replica, percent, seconds};
use super::state::{Mode, State};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const SOFT: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws all of it; `stale` says how old the picture is where the router does not answer.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, url: &str, stale: Option<u64>) {
    let area = frame.area();
    let decisions = if area.height >= 18 { area.height.saturating_sub(12) / 2 } else { 0 };
    let flow = if area.height >= 16 { 2 } else { 0 };
    let [head, bars, fleet, why, foot] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(flow),
        Constraint::Min(3),
        Constraint::Length(decisions),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, state, url, stale);
    if let Some(picture) = &state.picture {
        draw_flow(frame, bars, picture);
        draw_fleet(frame, fleet, state, picture);
        draw_decisions(frame, why, picture);
    }
    draw_foot(frame, foot, state);
    match &state.mode {
        Mode::Confirm { name, drain } => {
            let verb = if *drain { "Drain" } else { "Undrain" };
            let mut lines: Vec<Line<'_>> = state.consequences(name, *drain).iter().map(|line| Line::from(clean(line))).collect();
            lines.extend([Line::default(), Line::styled("y: do it    any other key: do not", BOLD)]);
            draw_box(frame, &format!("{verb} {}?", clean(name)), lines);
        }
        Mode::Help => draw_box(frame, "Keys", HELP.iter().map(|line| Line::from(*line)).collect()),
        _ => {}
    }
}

const HELP: [&str; 8] = [
    "q, Esc, Ctrl-C    leave",
    "up, down, j, k    select a replica; PgUp, PgDn by pages",
    "s                 sort by another column",
    "/                 show the names that have these letters",
    "d, u              drain, undrain the selected replica",
    "p                 pause, and go on",
    "Share, cached and first byte are of the last requests.",
    "Any key closes this.",
];

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State, url: &str, stale: Option<u64>) {
    let mut lines = Vec::new();
    match (&state.trouble, &state.picture) {
        (Some(trouble), picture) => {
            let old = stale.filter(|_| picture.is_some()).map_or(String::new(), |old| format!(" What is shown is {old} s old."));
            lines.push(Line::styled(clean(&format!("NOT CONNECTED: {trouble}.{old} Trying again.")), BOLD.fg(Color::Red)));
        }
        (None, None) => lines.push(Line::from(format!("Asking {url} …"))),
        (None, Some(_)) => {}
    }
    if let Some(picture) = &state.picture {
        lines.push(Line::styled(clean(&picture.headline()), BOLD));
        lines.push(Line::from(clean(&picture.overview.savings.text)));
        lines.extend(picture.hottest().map(|line| Line::from(clean(&line))));
    }
    if let Some(notice) = &state.notice {
        lines.insert(0, Line::styled(clean(notice), BOLD));
    }
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
}

fn draw_flow(frame: &mut Frame<'_>, area: Rect, picture: &Picture) {
    let [told, bars] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let all: u64 = picture.reasons().iter().map(|(_, count)| count).sum();
    let reasons = picture
        .reasons()
        .iter()
        .map(|(reason, count)| format!("{reason} {}", percent(Some(*count as f64 / all.max(1) as f64))))
        .collect::<Vec<_>>();
    let said = if all == 0 { "none".to_owned() } else { format!("{all}: {}", reasons.join(", ")) };
    frame.render_widget(Paragraph::new(clean(&format!("Last ten minutes by reason: {said}"))), told);
    // The newest at the right.
    let steps = picture.steps();
    let width = usize::from(bars.width);
    let shown = &steps[steps.len().saturating_sub(width)..];
    let padded: Vec<u64> = std::iter::repeat_n(0, width - shown.len()).chain(shown.iter().copied()).collect();
    frame.render_widget(Sparkline::default().data(&padded), bars);
}

fn draw_fleet(frame: &mut Frame<'_>, area: Rect, state: &State, picture: &Picture) {
    let shown = state.replicas();
    let seen = |place: &usize| COLUMNS[*place].2 <= area.width;
    let columns: Vec<usize> = (0..COLUMNS.len()).filter(seen).collect();
    let widths = columns.iter().map(|&place| COLUMNS[place].1);
    let rows = shown.iter().map(|replica| {
        let cells = row(replica);
        Row::new(columns.iter().map(|&place| cells[place].clone()).collect::<Vec<_>>())
    });
    let table = Table::new(rows, widths)
        .header(Row::new(columns.iter().map(|&place| COLUMNS[place].0).collect::<Vec<_>>()).style(BOLD))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::new().title_top(Line::styled(
            format!(
                "{} of {} replicas, {}; of the last {} requests",
                shown.len(),
                picture.fleet.replicas.len(),
                state.sort.name(),
                picture.fleet.recent_requests
            ),
            SOFT,
        )));
    let mut at = TableState::new().with_selected(Some(state.selected));
    frame.render_stateful_widget(table, area, &mut at);
}

/// Heads, widths, and from which width of the terminal on a column is seen.
const COLUMNS: [(&str, Constraint, u16); 8] = [
    ("REPLICA", Constraint::Fill(2), 0),
    ("STATE", Constraint::Length(8), 0),
    ("IN FLIGHT", Constraint::Length(17), 0),
    ("SHARE", Constraint::Length(6), 50),
    ("CACHED", Constraint::Length(6), 60),
    ("FIRST BYTE 50/90", Constraint::Length(16), 70),
    ("FAILED", Constraint::Length(6), 80),
    ("ENGINE", Constraint::Length(29), 120),
];

fn row(replica: &Replica) -> [Cell<'static>; COLUMNS.len()] {
    let state = Picture::state(replica);
    let style = match state {
        "up" => Style::new(),
        "down" => BOLD.fg(Color::Red),
        _ => BOLD.fg(Color::Yellow),
    };
    let (level, load) = match replica.threshold {
        Some(threshold) => {
            let full = (replica.outstanding as f64 / threshold.max(1) as f64).min(1.0);
            let filled = (full * 6.0).round() as usize;
            (format!("{}{} ", "#".repeat(filled), ".".repeat(6 - filled)), format!("{} of {threshold}", replica.outstanding))
        }
        None => (String::new(), replica.outstanding.to_string()),
    };
    let recent = &replica.recent;
    let engine = replica.engine.as_ref().map_or("-".to_owned(), |engine| {
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        format!("{} run, {} wait, KV {}", number(engine.running), number(engine.waiting), percent(engine.kv_cache_usage))
    });
    let times = match (recent.first_byte_p50, recent.first_byte_p90) {
        (None, None) => "-".to_owned(),
        (half, most) => format!("{}/{}", seconds(half), seconds(most)),
    };
    [
        Cell::from(clean(&replica.name)),
        Cell::from(Span::styled(clean(state), style)),
        Cell::from(format!("{level}{load}")),
        Cell::from(percent(Some(recent.share))),
        Cell::from(percent(recent.cached_share)),
        Cell::from(times),
        Cell::from(recent.failed.to_string()),
        Cell::from(engine),
    ]
}

fn draw_decisions(frame: &mut Frame<'_>, area: Rect, picture: &Picture) {
    let now = picture.overview.now;
    let lines = picture.decisions.decisions.iter().map(|one| {
        let ago = (now - one.time).max(0.0) as u64;
        let replica = one.replica.as_deref().unwrap_or("-");
        let outcome = one.error.as_ref().map_or(one.status.to_string(), |error| format!("{} {error}", one.status));
        Line::from(vec![
            Span::styled(format!("{ago:>4} s ago "), SOFT),
            Span::styled(clean(&format!("{} {replica} {outcome} {} ", one.reason, seconds(one.first_byte))), BOLD),
            Span::from(clean(&format!("{} ({})", one.why, one.request_id))),
        ])
    });
    let title = if picture.decisions.kept == 0 {
        "No decisions are kept (recent_decisions: 0)"
    } else {
        "The last requests, and why they went there"
    };
    let block = Block::new().title_top(Line::styled(title, SOFT));
    frame.render_widget(Paragraph::new(Text::from_iter(lines)).block(block), area);
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let text = match &state.mode {
        Mode::Filter => format!("Names with: {}_   Enter: keep  Esc: all", clean(&state.filter)),
        _ if state.paused => "PAUSED   p go on  q leave".to_owned(),
        _ if !state.filter.is_empty() => format!("Names with {:?}   / change  q leave  ? help", state.filter),
        _ => "q leave  s sort  / filter  d drain  u undrain  p pause  ? help".to_owned(),
    };
    frame.render_widget(Paragraph::new(text).style(SOFT), area);
}

fn draw_box(frame: &mut Frame<'_>, title: &str, lines: Vec<Line<'_>>) {
    let area = frame.area();
    let (width, height) = (area.width.min(76), area.height.min(lines.len() as u16 * 2 + 2));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }).block(Block::bordered().title(title.to_owned())), place);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::{Value, json};

    use super::super::state::{Action, Key};
    use super::*;

    fn replica(name: &str, state: &str, outstanding: u64) -> Value {
        json!({"name": name, "address": "a:1", "state": state, "health": "up", "draining": false, "drained_by": null, "outstanding": outstanding,
            "weight": 1, "configured_weight": 1, "models": [], "threshold": 8,
            "recent": {"requests": 1, "share": 0.5, "failed": 1, "prompt_tokens": 0, "cached_tokens": 0, "cached_share": 0.25,
                "first_byte_p50": 0.0123, "first_byte_p90": 1.5},
            "engine": {"running": 3, "waiting": 2, "kv_cache_usage": 0.5, "prefix_hit_share": null, "prefix_caching": null, "age_seconds": 1.0}})
    }

    fn state(replicas: Vec<Value>) -> State {
        let counts = json!({"home": 6, "none": 1});
        let picture = json!({
            "overview": {"version": "1.2.3", "started": 100.0, "now": 175.0, "strategy": "prefix_aware", "draining": false, "counted": true,
                "requests": {"total": 7, "in_flight": 2, "by_reason": counts, "by_status": {"2xx": 6, "5xx": 1}},
                "queue": {"requests": 4, "bytes": 1}, "flow": {"step_seconds": 5, "end": 175.0, "reasons": ["home", "none"], "counts": [[6, 0], [0, 1]]},
                "savings": {"source": null, "prompt_tokens": 0, "cached_tokens": 0, "share": null, "telling": null, "text": "Nobody says."}},
            "fleet": {"recent_requests": 7, "replicas": replicas},
            "hot_keys": {"pools": [{"pool": "all", "replicas": 2, "keys": [{"key": "00ff", "share": 0.75, "home": "a"}]}]},
            "decisions": {"kept": 512, "last": 1, "decisions": [{"id": 1, "time": 170.0, "request_id": "mine\u{1b}[31m", "method": "POST",
                "route": "chat_completions", "model": "m", "status": 200, "error": null, "replica": "a", "reason": "home", "why": "Because.",
                "tries": 1, "failed": "", "queued": null, "first_byte": 0.25, "duration": 1.0, "prompt_tokens": null, "cached_tokens": null,
                "completion_tokens": null, "overlap": null, "key": null, "depth": null}]},
        });
        let mut state = State::new();
        state.looked(Ok(serde_json::from_value(picture).unwrap()));
        state
    }

    fn drawn(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, "http://a:1", Some(9))).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content().chunks(usize::from(width.max(1)));
        rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>() + "\n").collect()
    }

    #[test]
    fn all_that_matters_is_on_an_ordinary_terminal() {
        let seen = drawn(&state(vec![replica("a", "up", 4), replica("b", "down", 0)]), 130, 24);
        for text in [
            "1 of 2 replicas up; 7 requests, 1 ended with 5xx, 2 in flight, 4 waiting; prefix_aware, up for 1 min, 1.2.3",
            "Nobody says.",
            "Hottest key: 00ff, 75 % of the last requests at least, more than one replica's share, at home with a",
            "Last ten minutes by reason: 7: home 86 %, none 14 %",
            "###... 4 of 8",
            "down",
            "12.3 ms/1.50 s",
            "3 run, 2 wait, KV 50 %",
            "5 s ago home a 200 250 ms Because.",
            "q leave",
        ] {
            assert!(seen.contains(text), "no {text:?} in\n{seen}");
        }
        assert!(!seen.contains('\u{1b}'), "nothing of others moves the cursor");
    }

    #[test]
    fn any_size_and_any_fleet_can_be_drawn() {
        let many: Vec<Value> =
            (0..200).map(|at| replica(&format!("replica-{at}-語{}", "x".repeat(at % 130)), "up", at as u64 * 1_000_000)).collect();
        for (width, height) in [(1, 1), (3, 2), (10, 5), (40, 10), (80, 24), (200, 60), (300, 5)] {
            for mode in [Mode::Table, Mode::Help, Mode::Filter, Mode::Confirm { name: "replica-0-語".to_owned(), drain: true }] {
                let mut state = state(many.clone());
                (state.mode, state.selected) = (mode, 199);
                let seen = drawn(&state, width, height);
                assert_eq!(seen.lines().count(), usize::from(height));
                if (width, height, &state.mode) == (200, 60, &Mode::Table) {
                    assert!(seen.contains("replica-199-"), "the selected one is seen:\n{seen}");
                }
            }
        }
        drawn(&State::new(), 80, 24);
        drawn(&state(Vec::new()), 80, 24);
    }

    #[test]
    fn a_router_that_is_gone_is_told_of_and_the_old_picture_stays() {
        let mut state = state(vec![replica("a", "up", 1)]);
        state.looked(Err("no router answers".to_owned()));
        let seen = drawn(&state, 100, 24);
        assert!(seen.contains("NOT CONNECTED: no router answers. What is shown is 9 s old. Trying again."), "{seen}");
        assert!(seen.contains("1 of 8"), "{seen}");
    }

    #[test]
    fn keys_do_what_the_help_says() {
        let mut state = state(vec![replica("a", "up", 4), replica("b", "up", 6), replica("c", "down", 0)]);
        let names = |state: &State| state.replicas().iter().map(|replica| replica.name.clone()).collect::<Vec<_>>().join("");
        assert_eq!(names(&state), "abc");
        state.press(Key::Char('s'), 5);
        assert_eq!(names(&state), "bac");
        for (key, selected) in
            [(Key::Down, 1), (Key::Char('j'), 2), (Key::Down, 2), (Key::Char('k'), 1), (Key::PageUp, 0), (Key::PageDown, 2), (Key::Up, 1)]
        {
            assert_eq!(state.press(key, 5), None);
            assert_eq!(state.selected, selected, "{key:?}");
        }
        // Nothing is drained by accident.
        state.press(Key::Char('d'), 5);
        assert!(drawn(&state, 80, 24).contains("Drain a?"));
        assert!(drawn(&state, 80, 24).contains("up, and take its keys: 1."));
        assert_eq!((state.press(Key::Enter, 5), state.mode.clone()), (None, Mode::Table));
        state.press(Key::Char('d'), 5);
        assert_eq!(state.press(Key::Char('y'), 5), Some(Action::Drain { name: "a".to_owned(), drain: true }));
        state.press(Key::Char('/'), 5);
        state.press(Key::Char('C'), 5);
        assert_eq!((names(&state).as_str(), state.selected), ("c", 0));
        assert_eq!(state.press(Key::Char('q'), 5), None, "a letter of a filter");
        state.press(Key::Backspace, 5);
        state.press(Key::Enter, 5);
        assert_eq!(names(&state), "c");
        state.press(Key::Char('/'), 5);
        state.press(Key::Escape, 5);
        assert_eq!(names(&state), "bac");
        // Paused, what is new is not shown.
        state.press(Key::Char('p'), 5);
        let newer =
            Picture { fleet: super::super::picture::Fleet { recent_requests: 0, replicas: Vec::new() }, ..state.picture.clone().unwrap() };
        state.looked(Ok(newer));
        assert_eq!(names(&state), "bac");
        assert_eq!(state.press(Key::Char('p'), 5), Some(Action::Look));
        assert_eq!(state.press(Key::Char('q'), 5), Some(Action::Leave));
    }
}
