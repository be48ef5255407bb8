package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"trill/adapters"
	"trill/engine/session"
	"trill/pipeline"
)

// routes is everything the process answers over HTTP.
func (a *app) routes() http.Handler {
	mux := http.NewServeMux()
	for name, h := range a.webhooks() {
		mux.Handle("/api/webhooks/"+name, h)
	}
	mux.HandleFunc("/api/webhooks/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such channel", http.StatusNotFound)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /api/sessions", a.guarded(a.listSessions))
	mux.Handle("GET /api/sessions/{id}", a.guarded(a.showSession))
	mux.Handle("GET /api/sessions/{id}/events", a.guarded(a.sessionEvents))
	mux.Handle("POST /api/outbox/{id}/retry", a.guarded(a.retryDelivery))
	return http.NewCrossOriginProtection().Handler(mux)
}

// webhooks makes the handlers of the channels that are called: under the
// channel's name, and under the platform's when it has only one channel.
func (a *app) webhooks() map[string]http.Handler {
	handlers := map[string]http.Handler{}
	count := map[adapters.Platform]int{}
	for _, ch := range a.channels {
		count[ch.Adapter.Platform()]++
	}
	for name, ch := range a.channels {
		receiver, ok := ch.Adapter.(adapters.WebhookReceiver)
		if !ok {
			continue
		}
		h := adapters.NewWebhook(receiver, a.pipeline, adapters.WebhookConfig{
			Log: a.log.With("channel", name),
			Observe: func(result string, took time.Duration) {
				a.metrics.webhooks.WithLabelValues(string(name), result).Observe(took.Seconds())
			},
		})
		handlers[string(name)] = h
		if platform := ch.Adapter.Platform(); count[platform] == 1 {
			if _, taken := a.channels[adapters.Channel(platform)]; !taken {
				handlers[string(platform)] = h
			}
		}
	}
	return handlers
}

// readiness is what /readyz says.
type readiness struct {
	Ready    bool                                  `json:"ready"`
	Database state                                 `json:"database"`
	Channels map[adapters.Channel]channelReadiness `json:"channels"`
}

type state struct {
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

type channelReadiness struct {
	state
	Platform adapters.Platform `json:"platform"`
	// BlockedRooms is how many rooms nothing can be sent to.
	BlockedRooms int `json:"blocked_rooms,omitempty"`
}

func (a *app) readyz(w http.ResponseWriter, r *http.Request) {
	rd := readiness{Ready: true, Database: state{OK: true}, Channels: map[adapters.Channel]channelReadiness{}}
	if _, err := a.db.Depth(r.Context()); err != nil {
		rd.Ready, rd.Database = false, state{Detail: "not readable"}
		a.log.ErrorContext(r.Context(), "readyz: database", "err", err)
	} else if err := a.db.Degraded(); err != nil {
		rd.Ready, rd.Database = false, state{Detail: err.Error()}
	}
	for name, ch := range a.channels {
		rd.Channels[name] = channelReadiness{state: state{OK: true}, Platform: ch.Adapter.Platform()}
	}
	for _, b := range a.pipeline.Blocks() {
		c, ok := rd.Channels[b.Channel]
		if !ok {
			continue
		}
		if b.Room != "" {
			c.BlockedRooms++
		} else {
			c.OK, c.Detail = false, "sending pauses until "+b.Until.UTC().Format(time.RFC3339)+": "+b.Reason
		}
		rd.Channels[b.Channel] = c
	}
	code := http.StatusOK
	if !rd.Ready {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, rd)
}

// guarded lets only requests with the token through.
func (a *app) guarded(next http.HandlerFunc) http.Handler {
	want := sha256.Sum256([]byte(a.token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(token))
		if !ok || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="trill"`)
			writeError(w, http.StatusUnauthorized, "send the token as \"Authorization: Bearer ...\"; it is in data_dir/token")
			return
		}
		next(w, r)
	})
}

func (a *app) listSessions(w http.ResponseWriter, r *http.Request) {
	limit, ok1 := number(r, "limit", 50, 500)
	offset, ok2 := number(r, "offset", 0, 1<<40)
	if !ok1 || !ok2 {
		writeError(w, http.StatusBadRequest, "limit (at most 500) and offset are whole numbers")
		return
	}
	list, err := a.db.Sessions(r.Context(), nil, int(limit), int(offset))
	if err != nil {
		a.internal(w, r, err)
		return
	}
	if list == nil {
		list = []pipeline.SessionInfo{}
	}
	writeJSON(w, http.StatusOK, map[string]any{"sessions": list})
}

func (a *app) showSession(w http.ResponseWriter, r *http.Request) {
	info, err := a.db.Session(r.Context(), session.ID(r.PathValue("id")))
	if errors.Is(err, session.ErrNotFound) {
		writeError(w, http.StatusNotFound, "no such session")
		return
	}
	if err != nil {
		a.internal(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, info)
}

func (a *app) sessionEvents(w http.ResponseWriter, r *http.Request) {
	after, ok1 := number(r, "after", 0, 1<<62)
	limit, ok2 := number(r, "limit", 200, 1000)
	if !ok1 || !ok2 || limit == 0 {
		writeError(w, http.StatusBadRequest, "after and limit (1 to 1000) are whole numbers")
		return
	}
	id := session.ID(r.PathValue("id"))
	if _, err := a.db.Session(r.Context(), id); errors.Is(err, session.ErrNotFound) {
		writeError(w, http.StatusNotFound, "no such session")
		return
	}
	evs, err := a.db.Events(r.Context(), id, after, int(limit))
	if err != nil {
		a.internal(w, r, err)
		return
	}
	if evs == nil {
		evs = []session.Event{}
	}
	writeJSON(w, http.StatusOK, map[string]any{"events": evs})
}

func (a *app) retryDelivery(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		writeError(w, http.StatusBadRequest, "the id is a whole number")
		return
	}
	d, err := a.pipeline.RetryDelivery(r.Context(), pipeline.DeliveryID(id))
	switch {
	case errors.Is(err, pipeline.ErrNotFound):
		writeError(w, http.StatusNotFound, "no such message")
	case errors.Is(err, pipeline.ErrGone):
		writeError(w, http.StatusConflict, "it is sent already, or on its way")
	case err != nil:
		a.internal(w, r, err)
	default:
		writeJSON(w, http.StatusOK, map[string]any{"id": d.ID, "state": d.State})
	}
}

// number reads a query parameter.
func number(r *http.Request, name string, otherwise, most int64) (int64, bool) {
	s := r.URL.Query().Get(name)
	if s == "" {
		return otherwise, true
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && n <= most
}

func (a *app) internal(w http.ResponseWriter, r *http.Request, err error) {
	a.log.ErrorContext(r.Context(), "api request failed", "path", r.URL.Path, "err", err)
	writeError(w, http.StatusInternalServerError, "internal error; the cause is in the log")
}

func writeError(w http.ResponseWriter, code int, text string) {
	writeJSON(w, code, map[string]string{"error": text})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(true)
	if err := enc.Encode(v); err != nil {
		slog.Debug("answer not written", "err", err)
	}
}

// newServer bounds how long a client may take.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
