//! Asks for streams and looks at when their pieces come.
//!
//!     streamclient PORT BODIES CONNECTIONS CONNECTIONS_PER_SECOND [LOOPS=1]
//!
//! Each connection asks for LOOPS streams, one after the other. Prints one line of JSON: streams that were whole and that were not and why, times to the
//! first event (`ttfc`) and between pieces (`gap`) in milliseconds, events.
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

#[derive(Default)]
struct R {
    ok: u64,
    status: u64,
    cut: u64,
    conn: u64,
    events: u64,
    ttfc: Vec<f64>,
    gaps: Vec<f64>,
}

fn pct(v: &mut Vec<f64>, p: f64) -> f64 {
    if v.is_empty() {
        return -1.0;
    }
    v.sort_by(|a, b| a.total_cmp(b));
    v[((v.len() - 1) as f64 * p) as usize]
}

async fn one(s: &mut TcpStream, req: &[u8], r: &Mutex<R>) -> bool {
    let t0 = Instant::now();
    if s.write_all(req).await.is_err() {
        r.lock().unwrap().conn += 1;
        return false;
    }
    let mut tail: Vec<u8> = vec![];
    let mut b = [0u8; 16384];
    let (mut head, mut last): (bool, Option<Instant>) = (true, None);
    loop {
        let n = match tokio::time::timeout(Duration::from_secs(120), s.read(&mut b)).await {
            Ok(Ok(n)) if n > 0 => n,
            _ => {
                r.lock().unwrap().cut += 1;
                return false;
            }
        };
        tail.extend_from_slice(&b[..n]);
        if head {
            if tail.len() < 12 {
                continue;
            }
            if &tail[9..12] != b"200" {
                r.lock().unwrap().status += 1;
                return false;
            }
            head = false;
        }
        let ev = memchr::memmem::find_iter(&tail, b"data: ").count() as u64;
        if ev > 0 {
            let now = Instant::now();
            let mut g = r.lock().unwrap();
            g.events += ev;
            match last {
                None => g.ttfc.push((now - t0).as_secs_f64() * 1e3),
                Some(l) => g.gaps.push((now - l).as_secs_f64() * 1e3),
            }
            last = Some(now);
        }
        if memchr::memmem::find(&tail, b"[DONE]").is_some() {
            // drain the final chunk terminator so that the connection can be reused
            if memchr::memmem::find(&tail, b"\r\n0\r\n\r\n").is_none() {
                let mut z = [0u8; 64];
                let _ = tokio::time::timeout(Duration::from_millis(200), s.read(&mut z)).await;
            }
            r.lock().unwrap().ok += 1;
            return true;
        }
        // keep what may be a split marker
        let keep = tail.iter().rposition(|&c| c == b'\n').map(|p| p + 1).unwrap_or(0);
        tail.drain(..keep);
        if tail.windows(6).any(|w| w == b"data: ") {
            tail.clear()
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let a: Vec<String> = std::env::args().collect();
    let port: u16 = a[1].parse().unwrap();
    let bodies: Vec<String> = std::fs::read_to_string(&a[2]).unwrap().lines().map(String::from).collect();
    let (n, ramp): (usize, f64) = (a[3].parse().unwrap(), a[4].parse().unwrap());
    let loops: usize = a.get(5).map(|x| x.parse().unwrap()).unwrap_or(1);
    let r = Arc::new(Mutex::new(R::default()));
    let t0 = Instant::now();
    let ls = tokio::task::LocalSet::new();
    let r2 = r.clone();
    ls.run_until(async move {
        let mut hs = vec![];
        for i in 0..n {
            let (r, body) = (r2.clone(), bodies[i % bodies.len()].clone());
            let at = t0 + Duration::from_secs_f64(i as f64 / ramp);
            hs.push(tokio::task::spawn_local(async move {
                tokio::time::sleep_until(at.into()).await;
                let req = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\nx-prefix: p{}\r\ncontent-length: {}\r\n\r\n{}", i % 61, body.len(), body);
                let mut s: Option<TcpStream> = None;
                for _ in 0..loops {
                    if s.is_none() {
                        match TcpStream::connect(("127.0.0.1", port)).await { Ok(x) => { x.set_nodelay(true).ok(); s = Some(x) } Err(_) => { r.lock().unwrap().conn += 1; continue } }
                    }
                    if !one(s.as_mut().unwrap(), req.as_bytes(), &r).await { s = None }
                }
            }));
        }
        for h in hs { let _ = h.await; }
    }).await;
    let mut g = r.lock().unwrap();
    let (mut t, mut gp) = (std::mem::take(&mut g.ttfc), std::mem::take(&mut g.gaps));
    println!(
        "{{\"ok\":{},\"bad_status\":{},\"cut\":{},\"conn_err\":{},\"events\":{},\"reads\":{},\"secs\":{:.2},\"ttfc_p50\":{:.3},\"ttfc_p99\":{:.3},\"gap_p50\":{:.3},\"gap_p99\":{:.3},\"gap_max\":{:.3}}}",
        g.ok,
        g.status,
        g.cut,
        g.conn,
        g.events,
        t.len() + gp.len(),
        t0.elapsed().as_secs_f64(),
        pct(&mut t, 0.5),
        pct(&mut t, 0.99),
        pct(&mut gp, 0.5),
        pct(&mut gp, 0.99),
        pct(&mut gp, 1.0)
    );
}
