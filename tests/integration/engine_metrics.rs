//! What engines say of themselves at `/metrics`: it is shown on the admin port, and whatever goes wrong with it changes nothing for clients.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prefix_router::demo_replica::Settings;

use crate::answers::{answer, chunk, head, ok};
use crate::command::{Serving, program};
use crate::replica::{Gate, Replica, Request, Step};
use crate::simulated::{Simulated, settings};
use crate::support::{A_WHILE, Folder, PATIENCE, Router, Setting, chat, eventually, list, samples, text};

const CHAT: &str = "/v1/chat/completions";
const AGE: &str = "prefix_router_engine_metrics_age_seconds";
const RUNNING: &str = "prefix_router_engine_running";
const OFTEN: Setting<'_> = ("engine_metrics_interval", "100ms");

/// A page as vLLM sent it.
const LOADED: &str = include_str!("../fixtures/engines/vllm/metrics-under-load.txt");

/// Whether it is a question for the engine's metrics.
fn is_question(request: &Request) -> bool {
    request.head.start.starts_with("GET /metrics ")
}

/// Shows this page, and answers everything else.
fn shows(page: impl Into<String>) -> impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static {
    let page = page.into();
    move |request| if is_question(request) { answer(200, "content-type: text/plain\r\n", &page) } else { ok(request) }
}

/// Answers questions so, and everything else as ever.
fn says(steps: Vec<Step>) -> impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static {
    move |request| if is_question(request) { steps.clone() } else { ok(request) }
}

fn questions(replica: &Replica) -> Vec<Request> {
    replica.requests().into_iter().filter(is_question).collect()
}

/// Waits for so many more questions to come.
async fn more_questions(replica: &Replica, count: usize) {
    let seen = questions(replica).len();
    eventually("questions", async || questions(replica).len() >= seen + count).await;
}

/// The names of the engine's series that a replica has.
fn series(text: &str, replica: &str) -> Vec<String> {
    let label = format!("{{replica=\"{replica}\"}}");
    let names = text.lines().filter_map(|line| line.strip_prefix("prefix_router_engine_")?.split_once(&label));
    names.map(|(name, _)| name.to_owned()).collect()
}

#[tokio::test]
async fn what_engines_say_is_shown() {
    let vllm = Replica::start("vllm", shows(LOADED));
    let llama = Replica::start("llama", shows(include_str!("../fixtures/engines/llama-cpp/metrics-under-load.txt")));
    let other = Replica::start("other", shows("process_start_time_seconds 1\n"));
    let router = Router::start(&[&vllm, &llama, &other], &[OFTEN]).await;
    router.has_metric(RUNNING, &[("replica", "vllm")], 3.0).await;
    router.has_metric(RUNNING, &[("replica", "llama")], 1.0).await;
    more_questions(&other, 2).await;
    let text = router.metrics().await;
    for (name, value) in [
        ("waiting", 7.0),
        ("kv_cache_usage_ratio", 0.322884012539185),
        ("prefix_queries_tokens_total", 118_716.0),
        ("prefix_hits_tokens_total", 82_816.0),
        ("cache_capacity_tokens", 10_240.0),
        ("resets_total", 0.0),
    ] {
        assert_eq!(samples(&text, &format!("prefix_router_engine_{name}"), &[("replica", "vllm")]), [value], "{name}");
    }
    let age = samples(&text, AGE, &[("replica", "vllm")]);
    assert!(age.len() == 1 && (0.0..PATIENCE.as_secs_f64()).contains(&age[0]), "{age:?}");
    // No more than what it says.
    assert_eq!(series(&text, "llama"), ["metrics_age_seconds", "resets_total", "running", "waiting"]);
    assert_eq!(series(&text, "other"), [] as [&str; 0]);
    assert!(!text.contains("vllm:") && !text.contains("llamacpp:"));
    let kinds = ["running gauge", "prefix_hits_tokens_total counter", "resets_total counter"];
    assert!(kinds.iter().all(|kind| text.contains(&format!("# TYPE prefix_router_engine_{kind}\n"))), "{text}");
}

#[tokio::test]
async fn a_restart_of_the_engine_is_counted() {
    let page = |counted: u64| format!("vllm:prefix_cache_queries_total {counted}\nvllm:prefix_cache_hits_total 1\n");
    let replica = Replica::start("a", shows(page(100)));
    let router = Router::start(&[&replica], &[OFTEN]).await;
    for (counted, resets) in [(100, 0.0), (200, 0.0), (50, 1.0), (60, 1.0), (0, 2.0)] {
        replica.script(shows(page(counted)));
        router.has_metric("prefix_router_engine_prefix_queries_tokens_total", &[("replica", "a")], counted as f64).await;
        assert_eq!(router.metric("prefix_router_engine_resets_total", &[("replica", "a")]).await, resets, "{counted}");
    }
}

#[tokio::test]
async fn whatever_goes_wrong_changes_nothing_for_clients() {
    let (a, b) = (Replica::start("a", shows(LOADED)), Replica::start("b", ok));
    let settings = [OFTEN, ("engine_metrics_timeout", "100ms"), ("engine_metrics_max_bytes", "64KiB")];
    let router = Router::start(&[&a, &b], &settings).await;
    router.has_metric(RUNNING, &[("replica", "a")], 3.0).await;
    let body = router.chat_for(&a, "x").await;
    let page = |running: u64| format!("vllm:num_requests_running {running}\n");
    let noise: Vec<u8> = (0..4_096_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nvllm:num_requests_running 9\n".to_vec();
    for (what, steps) in [
        ("dead", vec![Step::Reset]),
        ("closed", vec![Step::Fin]),
        ("not found", answer(404, "", page(9))),
        ("broken", answer(500, "", page(9))),
        ("garbage", answer(200, "", &noise)),
        ("not even HTTP", vec![Step::Write(noise.clone()), Step::Fin]),
        ("empty", answer(200, "", "")),
        ("cut off", vec![Step::Write(cut), Step::Fin]),
        ("too long", answer(200, "", page(9).repeat(10_000))),
        ("half a minute late", [vec![Step::Sleep(Duration::from_secs(30))], answer(200, "", page(9))].concat()),
        ("silent", vec![Step::Hang]),
        ("without an end", vec![head(), chunk(page(9)), Step::Hang]),
    ] {
        a.script(says(steps));
        more_questions(&a, 3).await;
        for _ in 0..3 {
            let response = router.post(CHAT, &body).await;
            assert_eq!((response.status, response.replica(), response.reason()), (200, "a", "home"), "{what}");
        }
        let text = router.metrics().await;
        assert_eq!(samples(&text, RUNNING, &[("replica", "a")]), [3.0], "{what}: the last reading stays");
        assert_eq!(samples(&text, "prefix_router_replica_state", &[("replica", "a"), ("state", "up")]), [1.0], "{what}");
        for counter in ["prefix_router_upstream_errors_total", "prefix_router_retries_total"] {
            assert_eq!(samples(&text, counter, &[]).iter().sum::<f64>(), 0.0, "{what}: {counter}");
        }
    }
    let age = router.metric(AGE, &[("replica", "a")]).await;
    eventually("it grows old", async || router.metric(AGE, &[("replica", "a")]).await > age).await;
    a.script(shows(page(4)));
    router.has_metric(RUNNING, &[("replica", "a")], 4.0).await;
    router.is_at_rest().await;
}

#[tokio::test]
async fn one_question_at_a_time_over_a_connection_of_its_own() {
    let (gate, open, most) = (Gate::new(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let script = {
        let (gate, open, most) = (gate.clone(), Arc::clone(&open), Arc::clone(&most));
        move |request: &Request| {
            if !is_question(request) {
                return ok(request);
            }
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let open = Arc::clone(&open);
            let end = Step::Do(Arc::new(move || {
                open.fetch_sub(1, Ordering::SeqCst);
            }));
            [vec![Step::Wait(gate.clone()), end], answer(200, "", LOADED)].concat()
        }
    };
    let replica = Replica::start("a", script);
    let router = Router::start(&[&replica], &[OFTEN, ("engine_metrics_timeout", "60s")]).await;
    replica.has_requests(1).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(questions(&replica).len(), 1, "it waits for the answer");
    for _ in 0..3 {
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    }
    gate.open();
    more_questions(&replica, 5).await;
    for _ in 0..3 {
        assert_eq!(router.post(CHAT, chat("x")).await.status, 200);
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
    let connections = |of_questions: bool| -> BTreeSet<usize> {
        let requests = replica.requests();
        requests.iter().filter(|request| is_question(request) == of_questions).map(|request| request.connection).collect()
    };
    assert_eq!(connections(true).len(), 1, "it is kept");
    assert!(connections(true).is_disjoint(&connections(false)), "requests have their own");
}

#[tokio::test]
async fn it_asks_with_the_credentials_of_replicas() {
    let replica = Replica::start("a", shows(LOADED));
    let router = Router::start(&[&replica], &[OFTEN, ("upstream_api_key", "sesame")]).await;
    router.has_metric(RUNNING, &[("replica", "a")], 3.0).await;
    let question = questions(&replica).remove(0);
    assert_eq!(question.head.start, "GET /metrics HTTP/1.1");
    assert_eq!(question.head.all("host"), [replica.addr.to_string()]);
    assert_eq!(question.head.all("authorization"), ["Bearer sesame"]);
}

#[tokio::test]
async fn it_follows_the_fleet_and_the_settings() {
    let (a, b) = (Replica::start("a", shows(LOADED)), Replica::start("b", shows(LOADED)));
    let folder = Folder::new();
    let content =
        |replicas: &[&Replica], interval| text(&list(replicas), &[("reload_interval", "0s"), ("engine_metrics_interval", interval)]);
    let router = Router::start_file(&folder.file("router.yaml", &content(&[&a], "100ms"))).await;
    let change = async |replicas: &[&Replica], interval| {
        folder.file("router.yaml", &content(replicas, interval));
        router.reload().await
    };
    router.has_metric(RUNNING, &[("replica", "a")], 3.0).await;
    change(&[&a, &b], "100ms").await;
    router.has_metric(RUNNING, &[("replica", "b")], 3.0).await;
    // Who leaves is asked no more, and its series are gone at once.
    change(&[&b], "100ms").await;
    let text = router.metrics().await;
    assert_eq!(series(&text, "a"), [] as [&str; 0]);
    assert_eq!(series(&text, "b").len(), 9);
    let asked = questions(&a).len();
    more_questions(&b, 5).await;
    assert!(questions(&a).len() <= asked + 1, "but for what was under way");
    // Nobody is asked.
    assert_eq!(change(&[&b], "0s").await, ["engine_metrics_interval"]);
    eventually("nothing is known", async || series(&router.metrics().await, "b").is_empty()).await;
    let asked = questions(&b).len();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(questions(&b).len(), asked);
    change(&[&b], "100ms").await;
    router.has_metric(RUNNING, &[("replica", "b")], 3.0).await;
}

#[tokio::test]
async fn an_engine_that_caches_no_prefixes_is_warned_of_once() {
    let off = LOADED.replace("enable_prefix_caching=\"True\"", "enable_prefix_caching=\"False\"");
    let (a, b) = (Replica::start("a", shows(off)), Replica::start("b", shows(LOADED)));
    let folder = Folder::new();
    let settings = [OFTEN, ("log_level", "debug"), ("engine_metrics_timeout", "10s")];
    let file = folder.file("router.yaml", &text(&list(&[&a, &b]), &settings));
    let serving = Serving::start(program().arg("serve").arg("--config").arg(&file), &[&a, &b]).await;
    let lines = |part: &str| serving.log().iter().filter(|line| line.contains(part)).count();
    more_questions(&a, 5).await;
    more_questions(&b, 5).await;
    let warning = "replica a says that its engine caches no prefixes";
    eventually("a warning", async || lines(warning) > 0).await;
    assert!(serving.log().iter().any(|line| line.contains(warning) && line.contains("WARN") && line.contains("--enable-prefix-caching")));
    // A change is told, and what goes on is not.
    for (script, told) in [(answer(404, "", ""), "replica b does not show"), (answer(200, "", LOADED), "replica b shows")] {
        let before = lines(told);
        b.script(says(script));
        eventually(told, async || lines(told) > before).await;
        more_questions(&b, 5).await;
        assert_eq!(lines(told), before + 1);
    }
    assert_eq!((lines(warning), lines("caches no prefixes")), (1, 1));
}

#[tokio::test]
async fn simulated_replicas_are_read_as_engines_are() {
    let settings = Settings { model: "m".to_owned(), ..settings() };
    let capacity = (settings.engine.block_size * settings.engine.blocks) as f64;
    let replica = Simulated::start(settings).await;
    let router = Router::start_with(&format!("replicas: ['http://{}']\n", replica.address()), &[OFTEN]).await;
    let prompt = "The replica that holds the beginning of a prompt answers sooner. ".repeat(20);
    for _ in 0..2 {
        assert_eq!(router.post(CHAT, chat(&prompt)).await.status, 200);
    }
    for (name, of_engine) in
        [("prefix_queries_tokens_total", "vllm:prefix_cache_queries_total"), ("prefix_hits_tokens_total", "vllm:prefix_cache_hits_total")]
    {
        let counted = replica.metric(of_engine, "engine=\"0\"").await;
        assert!(counted > 0.0);
        router.has_metric(&format!("prefix_router_engine_{name}"), &[], counted).await;
    }
    let text = router.metrics().await;
    assert_eq!(samples(&text, "prefix_router_engine_cache_capacity_tokens", &[]), [capacity]);
    assert_eq!(samples(&text, "prefix_router_engine_resets_total", &[]), [0.0]);
}
