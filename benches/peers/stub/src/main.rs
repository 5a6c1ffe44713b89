//! A replica that does as little as it can: one port, one thread, and HTTP/1.1 by hand, so that it is far cheaper than any proxy before it.
//!
//!     stub PORT [EVENTS=16] [EVERY_MS=0] [FIRST_MS=0] [AFTER_HEAD_MS=0] [HOSTS=1]
//!
//! A POST is answered with JSON of about 400 bytes or, where its body has `"stream":true`, with that many events. The answer begins after FIRST_MS; a
//! stream's first event comes AFTER_HEAD_MS after its head, and each further one EVERY_MS later. It listens on 127.0.0.1 and, for many replicas in one
//! process, on the HOSTS - 1 addresses behind it.
//!
//! In its metrics it has room for 16 million tokens: who keeps in mind what it holds comes to the bound of its own memory.
//!
//! Bodies hold a mark, `pfx-NNNNNN`, which says whose prefix they have; GET /stats tells how many prefixes there were, GET /reset forgets them.
use std::{cell::RefCell, collections::HashMap, rc::Rc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

#[derive(Default)]
struct Stats {
    reqs: u64,
    conns: u64,
    running: u64,
    aborted: u64,
    body_bytes: u64,
    chunked_req: u64,
    render: u64,
    prefixes: HashMap<Vec<u8>, u64>,
}
#[derive(Clone, Copy)]
struct Cfg {
    port: u16,
    chunks: usize,
    delay: u64,
    first: u64,
    after_head: u64,
}

struct Running(Rc<RefCell<Stats>>, bool);
impl Drop for Running {
    fn drop(&mut self) {
        let mut s = self.0.borrow_mut();
        s.running -= 1;
        if !self.1 {
            s.aborted += 1
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|x| x.parse().expect("number")).collect();
    let g = |i: usize, d| a.get(i).copied().unwrap_or(d);
    let cfg = Cfg { port: g(0, 9001) as u16, chunks: g(1, 16) as usize, delay: g(2, 0), first: g(3, 0), after_head: g(4, 0) };
    let st = Rc::new(RefCell::new(Stats::default()));
    let ls = tokio::task::LocalSet::new();
    for host in 1..=g(5, 1) as u8 {
        let sock = tokio::net::TcpSocket::new_v4().unwrap();
        sock.set_reuseaddr(true).unwrap();
        sock.bind(([127, 0, 0, host], cfg.port).into()).unwrap();
        ls.spawn_local(serve(sock.listen(4096).unwrap(), st.clone(), cfg));
    }
    ls.await;
}

async fn serve(l: TcpListener, st: Rc<RefCell<Stats>>, cfg: Cfg) {
    loop {
        let Ok((s, _)) = l.accept().await else { continue };
        s.set_nodelay(true).ok();
        st.borrow_mut().conns += 1;
        let st = st.clone();
        tokio::task::spawn_local(async move {
            let _ = conn(s, st, cfg).await;
        });
    }
}

fn itoa(mut v: u32, b: &mut [u8; 10]) -> &str {
    let mut i = 10;
    loop {
        i -= 1;
        b[i] = b'0' + (v % 10) as u8;
        v /= 10;
        if v == 0 {
            break;
        }
    }
    std::str::from_utf8(&b[i..]).unwrap()
}

/// End of a chunked body starting at `p`, or None if more bytes are needed.
fn chunked_end(b: &[u8], mut p: usize) -> Option<usize> {
    loop {
        let e = p + memchr::memchr(b'\n', b.get(p..)?)?;
        let line = std::str::from_utf8(&b[p..e]).ok()?.trim();
        let n = usize::from_str_radix(line.split(';').next()?, 16).ok()?;
        p = e + 1 + n + 2;
        if p > b.len() {
            return None;
        }
        if n == 0 {
            return Some(p);
        }
    }
}

async fn conn(mut s: TcpStream, st: Rc<RefCell<Stats>>, cfg: Cfg) -> std::io::Result<()> {
    let mut buf: Vec<u8> = Vec::with_capacity(16 << 10);
    loop {
        // head
        let (hl, method_post, path, len, chunked, expect) = loop {
            let mut hs = [httparse::EMPTY_HEADER; 64];
            let mut r = httparse::Request::new(&mut hs);
            match r.parse(&buf) {
                Ok(httparse::Status::Complete(n)) => {
                    let (mut len, mut ch, mut ex) = (0usize, false, false);
                    for h in r.headers.iter() {
                        let v = std::str::from_utf8(h.value).unwrap_or("");
                        if h.name.eq_ignore_ascii_case("content-length") {
                            len = v.parse().unwrap_or(0)
                        }
                        if h.name.eq_ignore_ascii_case("transfer-encoding") && v.contains("chunked") {
                            ch = true
                        }
                        if h.name.eq_ignore_ascii_case("expect") {
                            ex = true
                        }
                    }
                    break (n, r.method == Some("POST"), r.path.unwrap_or("/").to_string(), len, ch, ex);
                }
                Ok(_) => {}
                Err(_) => {
                    s.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await?;
                    return Ok(());
                }
            }
            if s.read_buf(&mut buf).await? == 0 {
                return Ok(());
            }
        };
        if expect {
            s.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?
        }
        // body
        let end = if chunked {
            loop {
                if let Some(e) = chunked_end(&buf, hl) {
                    break e;
                }
                if buf.capacity() - buf.len() < 8192 {
                    buf.reserve(buf.capacity().max(16 << 10))
                }
                if s.read_buf(&mut buf).await? == 0 {
                    return Ok(());
                }
            }
        } else {
            if buf.capacity() < hl + len {
                buf.reserve(hl + len - buf.len())
            }
            while buf.len() < hl + len {
                if s.read_buf(&mut buf).await? == 0 {
                    return Ok(());
                }
            }
            hl + len
        };
        if method_post && path.ends_with("/render") {
            // vllm-router's cache_aware policy asks a replica for the prompt's token ids: 1 token per 4 bytes
            st.borrow_mut().render += 1;
            let body = &buf[hl..end];
            let at = memchr::memmem::find(body, b"\"messages\"").unwrap_or(0);
            let mut j = String::with_capacity(body.len() * 2 + 128);
            j.push_str("{\"request_id\":\"r\",\"model\":\"stub\",\"sampling_params\":{},\"token_ids\":[1");
            for c in body[at..].chunks_exact(4) {
                j.push(',');
                j.push_str(itoa(u32::from_le_bytes(c.try_into().unwrap()) % 50021, &mut [0; 10]));
            }
            j.push_str("]}");
            s.write_all(
                format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}", j.len(), j).as_bytes(),
            )
            .await?;
        } else if method_post {
            let body = &buf[hl..end];
            let stream =
                memchr::memmem::find(body, b"\"stream\":true").is_some() || memchr::memmem::find(body, b"\"stream\": true").is_some();
            let mut g = st.borrow_mut();
            g.reqs += 1;
            g.running += 1;
            g.body_bytes += body.len() as u64;
            g.chunked_req += chunked as u64;
            if let Some(p) = memchr::memmem::find(body, b"pfx-") {
                if let Some(k) = body.get(p..p + 10) {
                    if let Some(c) = g.prefixes.get_mut(k) {
                        *c += 1
                    } else {
                        g.prefixes.insert(k.to_vec(), 1);
                    }
                }
            }
            drop(g);
            let mut run = Running(st.clone(), false);
            if cfg.first > 0 {
                tokio::time::sleep(Duration::from_millis(cfg.first)).await
            }
            if stream {
                sse(&mut s, cfg).await?
            } else {
                let j = format!(
                    "{{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1764400000,\"model\":\"stub\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"Hello there, this is a fixed answer of the stub replica on port {:05}. It is padded to be about as long as a short answer of a model would be.\"}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":100,\"completion_tokens\":16,\"total_tokens\":116}}}}",
                    cfg.port
                );
                s.write_all(
                    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}", j.len(), j).as_bytes(),
                )
                .await?;
            }
            run.1 = true;
        } else {
            let (ct, b) = get(&path, &st, cfg);
            s.write_all(format!("HTTP/1.1 200 OK\r\ncontent-type: {ct}\r\ncontent-length: {}\r\n\r\n{b}", b.len()).as_bytes()).await?;
        }
        buf.drain(..end);
    }
}

async fn sse(s: &mut TcpStream, cfg: Cfg) -> std::io::Result<()> {
    let ev = format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,\"model\":\"stub\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" token\"}},\"finish_reason\":null}}]}}\n\n"
    );
    let chunk = format!("{:x}\r\n{}\r\n", ev.len(), ev);
    s.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    if cfg.after_head > 0 {
        tokio::time::sleep(Duration::from_millis(cfg.after_head)).await
    }
    for i in 0..cfg.chunks {
        if i > 0 && cfg.delay > 0 {
            // wake up on a disconnect too, as vLLM does
            let mut one = [0u8; 1];
            tokio::select! {
                _ = tokio::time::sleep(Duration::from_millis(cfg.delay)) => {}
                r = s.peek(&mut one) => if matches!(r, Ok(0) | Err(_)) { return Err(std::io::ErrorKind::ConnectionReset.into()) }
            }
        } else if i > 0 {
            tokio::task::yield_now().await
        }
        s.write_all(chunk.as_bytes()).await?;
    }
    s.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await
}

fn get(path: &str, st: &Rc<RefCell<Stats>>, cfg: Cfg) -> (&'static str, String) {
    if path == "/reset" {
        let r = st.borrow().running;
        *st.borrow_mut() = Stats { running: r, ..Default::default() }
    }
    let g = st.borrow();
    match path.split('?').next().unwrap() {
        "/v1/models" => ("application/json", "{\"object\":\"list\",\"data\":[{\"id\":\"stub\",\"object\":\"model\",\"created\":1764400000,\"owned_by\":\"vllm\",\"max_model_len\":131072}]}".into()),
        "/metrics" => ("text/plain; version=0.0.4", format!("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{model_name=\"stub\"}} {}.0\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{model_name=\"stub\"}} 0.0\n# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{{model_name=\"stub\"}} {:.4}\n# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{block_size=\"16\",enable_prefix_caching=\"True\",num_gpu_blocks=\"1000000\"}} 1.0\n", g.running, (g.running as f64 / 256.0).min(1.0))),
        "/stats" => ("application/json", format!("{{\"port\":{},\"reqs\":{},\"conns\":{},\"running\":{},\"aborted\":{},\"body_bytes\":{},\"chunked_req\":{},\"render\":{},\"prefixes\":{}}}", cfg.port, g.reqs, g.conns, g.running, g.aborted, g.body_bytes, g.chunked_req, g.render, g.prefixes.len())),
        "/get_model_info" | "/model_info" => ("application/json", "{\"model_path\":\"stub\",\"tokenizer_path\":\"stub\",\"is_generation\":true}".into()),
        "/get_server_info" | "/server_info" => ("application/json", "{\"model_id\":\"stub\",\"model_path\":\"stub\",\"served_model_name\":\"stub\",\"tp_size\":1,\"dp_size\":1}".into()),
        "/version" => ("application/json", "{\"version\":\"0.0.0-stub\"}".into()),
        _ => ("application/json", "{}".into()),
    }
}
