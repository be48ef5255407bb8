package adapters

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// The results that [WebhookConfig.Observe] is told.
const (
	WebhookAccepted    = "accepted"    // 200, stored
	WebhookIgnored     = "ignored"     // 200, nothing in it for us
	WebhookMethod      = "method"      // 405
	WebhookTooLarge    = "too_large"   // 413
	WebhookUnreadable  = "unreadable"  // 400 or 408, the body did not come
	WebhookSignature   = "signature"   // 401
	WebhookMalformed   = "malformed"   // 400
	WebhookLimited     = "limited"     // 429
	WebhookUnavailable = "unavailable" // 503, not stored
)

const (
	defaultMaxBody       = 1 << 20
	defaultAcceptTimeout = 2500 * time.Millisecond
	defaultBodyTimeout   = 10 * time.Second
	defaultFailures      = 20

	// floodPerSecond of failures make a source a flood.
	floodPerSecond = 100
	floodBurst     = 200
	// maxSources is how many addresses with failures are remembered.
	maxSources = 4096
	// maxDrain is how much of an oversized body is read and thrown away, so
	// that a client which sends before it listens still sees the 413.
	maxDrain = 16 << 20
	// bodyGuess is the buffer for a body before any of it came. What the
	// client announces is not worth more.
	bodyGuess = 8 << 10
)

// WebhookConfig sets the limits of a webhook; zero fields have the defaults
// named.
type WebhookConfig struct {
	MaxBody       int64         // bytes of a body; 1 MiB
	AcceptTimeout time.Duration // for the inbox to store it; 2.5 s, because Slack gives up at 3 s
	BodyTimeout   time.Duration // for the body to arrive; 10 s
	// FailuresPerMinute is how many requests with a bad signature an address
	// may send before they are answered 429 and no longer logged; 20.
	FailuresPerMinute int
	// Observe is told the result of every request and how long it took. It has
	// to be quick and safe to be called at once.
	Observe func(result string, took time.Duration)
	Log     *slog.Logger     // nil: no log
	Now     func() time.Time // nil: time.Now
}

// NewWebhook returns the handler of one channel's webhook. It answers only once
// the inbox has stored the messages: 200 accepted or nothing to do, 400
// malformed, 401 not from the platform, 405 not a POST, 413 too large, 429 over
// the limit, 503 not able to store, with Retry-After.
//
// Only failed authentications count against a source, and the source is the peer
// of the socket: forwarding headers are not trusted. That makes everybody behind
// one proxy the same source, the platform included, and a platform that is
// turned away may not come again. So the limit has two steps. Beyond
// FailuresPerMinute a source gets 429 instead of 401 for what fails, while a
// proper request still passes. Beyond 100 failures a second all its requests get
// 429 unread until the flood ebbs: then checking them would cost more than it is
// worth.
func NewWebhook(receiver WebhookReceiver, inbox Inbox, conf WebhookConfig) http.Handler {
	if conf.MaxBody <= 0 {
		conf.MaxBody = defaultMaxBody
	}
	if conf.AcceptTimeout <= 0 {
		conf.AcceptTimeout = defaultAcceptTimeout
	}
	if conf.BodyTimeout <= 0 {
		conf.BodyTimeout = defaultBodyTimeout
	}
	if conf.FailuresPerMinute <= 0 {
		conf.FailuresPerMinute = defaultFailures
	}
	if conf.Observe == nil {
		conf.Observe = func(string, time.Duration) {}
	}
	if conf.Log == nil {
		conf.Log = slog.New(slog.DiscardHandler)
	}
	if conf.Now == nil {
		conf.Now = time.Now
	}
	return &webhook{
		WebhookConfig: conf,
		receiver:      receiver,
		inbox:         inbox,
		log:           conf.Log.With("platform", receiver.Platform()),
		failures:      failures{perMinute: conf.FailuresPerMinute, sources: make(map[netip.Addr]*source)},
	}
}

type webhook struct {
	WebhookConfig
	receiver WebhookReceiver
	inbox    Inbox
	log      *slog.Logger
	failures failures
}

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := h.Now()
	result := h.serve(w, r, start)
	h.Observe(result, h.Now().Sub(start))
}

func (h *webhook) serve(w http.ResponseWriter, r *http.Request, now time.Time) string {
	ctx := r.Context()
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return WebhookMethod
	}
	from := peer(r.RemoteAddr)
	if h.failures.flood(from, now) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return WebhookLimited
	}

	body, err := h.read(w, r)
	if err != nil {
		return h.unread(ctx, w, from, err)
	}
	messages, err := h.receiver.Receive(r.Header, body)
	switch {
	case err == nil:
	case errors.Is(err, ErrMalformed):
		h.log.WarnContext(ctx, "webhook malformed", "peer", from, "err", err)
		http.Error(w, "bad request", http.StatusBadRequest)
		return WebhookMalformed
	default:
		// Whatever else it is, the sender has not shown who it is.
		if h.failures.add(from, now) {
			w.Header().Set("Retry-After", "60")
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return WebhookLimited
		}
		h.log.WarnContext(ctx, "webhook refused", "peer", from, "err", err)
		http.Error(w, "unauthorized", http.StatusUnauthorized)
		return WebhookSignature
	}
	if len(messages) == 0 {
		h.ok(w)
		return WebhookIgnored
	}

	// A platform that hangs up meanwhile may never send this again, so the
	// commit goes on without it.
	store, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.AcceptTimeout)
	defer cancel()
	if err := h.inbox.Accept(store, messages...); err != nil {
		h.log.ErrorContext(ctx, "webhook not stored", "message", messages[0].ID, "err", err)
		w.Header().Set("Retry-After", "5")
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return WebhookUnavailable
	}
	h.ok(w)
	return WebhookAccepted
}

func (h *webhook) ok(w http.ResponseWriter) {
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
}

var errTooLarge = errors.New("body too large")

// read returns the whole body, or errTooLarge.
func (h *webhook) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	conn := http.NewResponseController(w)
	limited := conn.SetReadDeadline(time.Now().Add(h.BodyTimeout)) == nil
	if r.ContentLength > h.MaxBody {
		return nil, drain(r.Body)
	}
	var body bytes.Buffer
	if n := r.ContentLength; n >= 0 {
		body.Grow(int(min(n, bodyGuess)) + bytes.MinRead) // so that ReadFrom need not grow it to find the end
	}
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, h.MaxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, drain(r.Body)
	}
	if err == nil && limited {
		// Left in place it would end the request while the inbox stores it.
		err = conn.SetReadDeadline(time.Time{})
	}
	return body.Bytes(), err
}

func drain(body io.Reader) error {
	if _, err := io.CopyN(io.Discard, body, maxDrain); err != nil && !errors.Is(err, io.EOF) {
		return errors.Join(errTooLarge, err)
	}
	return errTooLarge
}

func (h *webhook) unread(ctx context.Context, w http.ResponseWriter, from netip.Addr, err error) string {
	h.log.DebugContext(ctx, "webhook body not read", "peer", from, "err", err)
	switch {
	case errors.Is(err, errTooLarge):
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
		return WebhookTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		http.Error(w, "body too slow", http.StatusRequestTimeout)
	default:
		http.Error(w, "bad request", http.StatusBadRequest)
	}
	return WebhookUnreadable
}

// peer returns the address at the other end of the socket; of an IPv6 address
// the network, because a host has all of it.
func peer(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	a := ap.Addr().Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// failures counts bad signatures per source.
type failures struct {
	perMinute int

	known   atomic.Int64 // len(sources), so that the usual request takes no lock
	mu      sync.Mutex   // guards what follows
	swept   time.Time    // when forget last looked at all
	sources map[netip.Addr]*source
}

type source struct {
	warn  *rate.Limiter // what is answered 401
	flood *rate.Limiter // what is looked at
}

// flood reports whether requests of the source are to be refused unread.
func (f *failures) flood(from netip.Addr, now time.Time) bool {
	if f.known.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.sources[from]
	return ok && s.flood.TokensAt(now) < 1
}

// add counts a failure and reports whether it is one too many.
func (f *failures) add(from netip.Addr, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.sources[from]
	if !ok {
		if len(f.sources) >= maxSources {
			f.forget(now)
		}
		s = &source{
			warn:  rate.NewLimiter(rate.Limit(float64(f.perMinute)/60), f.perMinute),
			flood: rate.NewLimiter(floodPerSecond, floodBurst),
		}
		f.sources[from] = s
		f.known.Store(int64(len(f.sources)))
	}
	s.flood.AllowN(now, 1)
	return !s.warn.AllowN(now, 1)
}

// forget makes room: it drops the sources that have been quiet for long enough to
// start anew, or any one when there are none.
func (f *failures) forget(now time.Time) {
	if now.Sub(f.swept) > time.Second { // or many addresses could keep us busy
		f.swept = now
		for a, s := range f.sources {
			if s.warn.TokensAt(now) >= float64(f.perMinute) {
				delete(f.sources, a)
			}
		}
	}
	for a := range f.sources {
		if len(f.sources) < maxSources {
			return
		}
		delete(f.sources, a)
	}
}
