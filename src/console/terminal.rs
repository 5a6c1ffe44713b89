//! `top` that lives: looks at the router now and then, draws, and does what keys say, until it is left.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use hyper::Method;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::Client;
use super::client::escaped;
use super::picture::take;
use super::state::{Action, Key, State};
use super::view::draw;

/// Runs until somebody leaves it or it is told to end. The terminal is as before then, whatever happened.
pub(super) async fn run(client: &Client, every: Duration) -> Result<()> {
    let mut ended = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut hung_up = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let mut terminal = ratatui::try_init().context("cannot use this terminal")?;
    let result = tokio::select! {
        result = live(client, every, &mut terminal) => result,
        _ = ended.recv() => Ok(()),
        _ = hung_up.recv() => Ok(()),
    };
    ratatui::restore();
    result
}

async fn live(client: &Client, every: Duration, terminal: &mut DefaultTerminal) -> Result<()> {
    let mut state = State::new();
    let mut events = events();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = Instant::now();
    loop {
        let stale = state.trouble.as_ref().map(|_| seen.elapsed().as_secs());
        terminal.draw(|frame| draw(frame, &state, client.url(), stale)).context("cannot draw")?;
        tokio::select! {
            _ = ticks.tick() => look(client, &mut state, &mut seen).await,
            event = events.recv() => {
                let Some(event) = event else { return Ok(()) };
                let Some(key) = key(&event) else { continue };
                let page = usize::from(terminal.size().map_or(24, |size| size.height)) / 2;
                match key.map(|key| state.press(key, page)) {
                    // Ctrl-C
                    None => return Ok(()),
                    Some(Some(Action::Leave)) => return Ok(()),
                    Some(Some(Action::Look)) => look(client, &mut state, &mut seen).await,
                    Some(Some(Action::Drain { name, drain })) => {
                        state.notice = Some(order(client, &name, drain).await);
                        look(client, &mut state, &mut seen).await;
                    }
                    Some(None) => state.notice = None,
                }
            }
        }
    }
}

async fn look(client: &Client, state: &mut State, seen: &mut Instant) {
    let looked = take(client).await;
    if looked.is_ok() {
        *seen = Instant::now();
    }
    state.looked(looked.map_err(|error| format!("{error:#}")));
}

/// Drains or undrains, and says what became of it.
async fn order(client: &Client, name: &str, drain: bool) -> String {
    let verb = if drain { "drain" } else { "undrain" };
    match client.ask(Method::POST, &format!("replicas/{}/{verb}", escaped(name)), Bytes::new(), &[]).await {
        Ok(_) if drain => format!("{name} is drained."),
        Ok(_) => format!("{name} is drained no longer."),
        Err(error) => format!("It was not done: {error:#}"),
    }
}

/// What comes from the keyboard, read on a thread of its own, which ends with the process.
fn events() -> mpsc::Receiver<Event> {
    let (tell, told) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if tell.blocking_send(event).is_err() {
                return;
            }
        }
    });
    told
}

/// `None`: nothing to do but to draw. `Some(None)`: Ctrl-C.
fn key(event: &Event) -> Option<Option<Key>> {
    let Event::Key(key) = event else { return None };
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(None);
    }
    let known = match key.code {
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    };
    Some(Some(known))
}
