# The newest Go carries the newest fixes of its own library.
FROM golang:1 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o /bot ./cmd/bot && mkdir /data

FROM debian:stable-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --home-dir /data --no-create-home trill
COPY --from=build /bot /usr/local/bin/bot
COPY --from=build --chown=10001:10001 /data /data
USER trill
WORKDIR /data
VOLUME /data
EXPOSE 8420
ENTRYPOINT ["bot"]
CMD ["serve", "-config", "/data/trill.toml"]
