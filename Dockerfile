# The router as one static file in an empty image. Build: docker build -t prefix-router .
# `tests/container/run` runs these steps without Docker; it reads this file.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
# The allocator is built with it.
RUN apt-get update && apt-get install -y --no-install-recommends make
# Everything is linked in, libc too, and random numbers come from the kernel's call, so that not even /dev is needed. That takes the target's
# name, so that what runs during the build is not linked so.
ENV RUSTFLAGS="-C target-feature=+crt-static --cfg getrandom_backend=\"linux_getrandom\""
RUN rustc -vV | sed -n 's/^host: //p' > host
# Dependencies first: their layer lasts until Cargo.lock changes.
COPY Cargo.toml Cargo.lock rustfmt.toml ./
RUN mkdir src benches && touch src/lib.rs \
    && echo 'fn main() {}' | tee src/main.rs $(sed -n '/^\[\[bench\]\]/{n;s,name = "\(.*\)",benches/\1.rs,p;}' Cargo.toml) > /dev/null \
    && cargo build --locked --release --target "$(cat host)" && rm -r src benches
COPY src src
COPY benches benches
RUN touch src/main.rs src/lib.rs && cargo build --locked --release --target "$(cat host)" \
    && cp "target/$(cat host)/release/prefix-router" prefix-router

FROM scratch
COPY --from=build /src/prefix-router /prefix-router
# In a container the ports are published by whoever runs it, so both listen everywhere.
ENV PREFIX_ROUTER_LISTEN=0.0.0.0:8080 PREFIX_ROUTER_ADMIN=0.0.0.0:8081
EXPOSE 8080 8081
USER 65532:65532
# Healthy while a replica can be used.
HEALTHCHECK --interval=5s --timeout=3s --start-period=5s CMD ["/prefix-router", "healthcheck"]
ENTRYPOINT ["/prefix-router"]
CMD ["serve"]
