package adapters_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"trill/adapters"
)

// platform takes a request whose body starts with "good" as its own.
type platform struct{ adapters.ChannelAdapter }

func (platform) Platform() adapters.Platform { return "test" }

func (platform) Receive(_ http.Header, body []byte) ([]adapters.InboundMessage, error) {
	switch {
	case bytes.Equal(body, []byte("good nothing")):
		return nil, nil
	case bytes.HasPrefix(body, []byte("good")):
		return []adapters.InboundMessage{{ID: adapters.MessageID(fmt.Sprint(len(body)))}}, nil
	case bytes.Equal(body, []byte("bad json")):
		return nil, fmt.Errorf("%w: no object", adapters.ErrMalformed)
	default:
		return nil, fmt.Errorf("%w: secret detail", adapters.ErrSignature)
	}
}

// inbox keeps what it accepts.
type inbox struct {
	mu   sync.Mutex // guards got
	got  []adapters.InboundMessage
	fail func(context.Context) error
}

func (in *inbox) Accept(ctx context.Context, ms ...adapters.InboundMessage) error {
	if in.fail != nil {
		return in.fail(ctx)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.got = append(in.got, ms...)
	return nil
}

func call(h http.Handler, method, body, from string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/", strings.NewReader(body))
	if from != "" {
		r.RemoteAddr = from
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestWebhookAnswers(t *testing.T) {
	down := func(context.Context) error { return errors.New("disk full") }
	cases := map[string]struct {
		method, body string
		fail         func(context.Context) error
		status       int
		result       string
	}{
		"a message":               {"POST", "good", nil, 200, adapters.WebhookAccepted},
		"nothing for us":          {"POST", "good nothing", nil, 200, adapters.WebhookIgnored},
		"nothing, database down":  {"POST", "good nothing", down, 200, adapters.WebhookIgnored},
		"forged":                  {"POST", "evil", nil, 401, adapters.WebhookSignature},
		"empty":                   {"POST", "", nil, 401, adapters.WebhookSignature},
		"malformed":               {"POST", "bad json", nil, 400, adapters.WebhookMalformed},
		"GET":                     {"GET", "", nil, 405, adapters.WebhookMethod},
		"just not too large":      {"POST", "good" + strings.Repeat("x", 1<<20-4), nil, 200, adapters.WebhookAccepted},
		"one byte too large":      {"POST", "good" + strings.Repeat("x", 1<<20-3), nil, 413, adapters.WebhookTooLarge},
		"database down":           {"POST", "good", down, 503, adapters.WebhookUnavailable},
		"forged, database down":   {"POST", "evil", down, 401, adapters.WebhookSignature},
		"too large, database too": {"POST", strings.Repeat("x", 2<<20), down, 413, adapters.WebhookTooLarge},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var results []string
			in := &inbox{fail: c.fail}
			h := adapters.NewWebhook(platform{}, in, adapters.WebhookConfig{
				Observe: func(r string, _ time.Duration) { results = append(results, r) },
			})
			w := call(h, c.method, c.body, "")
			if w.Code != c.status {
				t.Errorf("status %d, want %d", w.Code, c.status)
			}
			if len(results) != 1 || results[0] != c.result {
				t.Errorf("observed %q, want %q", results, c.result)
			}
			if got, want := len(in.got), c.result == adapters.WebhookAccepted; (got == 1) != want {
				t.Errorf("%d messages stored", got)
			}
			if c.status == 503 && w.Header().Get("Retry-After") == "" {
				t.Error("503 without Retry-After")
			}
			if strings.Contains(w.Body.String(), "detail") || strings.Contains(w.Body.String(), "disk") {
				t.Errorf("the answer tells too much: %q", w.Body)
			}
		})
	}
}

func TestWebhookGivesUpOnAStuckDatabaseInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{fail: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		h := adapters.NewWebhook(platform{}, in, adapters.WebhookConfig{})
		start := time.Now()
		if w := call(h, "POST", "good", ""); w.Code != 503 {
			t.Errorf("status %d, want 503", w.Code)
		}
		if took := time.Since(start); took != 2500*time.Millisecond {
			t.Errorf("answered after %v, want 2.5s", took)
		}
	})
}

func TestWebhookStoresThoughThePlatformHangsUp(t *testing.T) {
	in := &inbox{fail: func(ctx context.Context) error { return ctx.Err() }}
	h := adapters.NewWebhook(platform{}, in, adapters.WebhookConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader("good"))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 200 {
		t.Errorf("status %d, want 200", w.Code)
	}
}

func TestWebhookLimitsForgersWithoutLockingThePlatformOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := adapters.NewWebhook(platform{}, &inbox{}, adapters.WebhookConfig{})
		const proxy, elsewhere = "192.0.2.1:1000", "192.0.2.2:1000"
		for i := range 20 {
			if w := call(h, "POST", "evil", fmt.Sprint("192.0.2.1:", 2000+i)); w.Code != 401 {
				t.Fatalf("forgery %d: status %d, want 401", i+1, w.Code)
			}
		}
		if w := call(h, "POST", "evil", proxy); w.Code != 429 || w.Header().Get("Retry-After") == "" {
			t.Errorf("forgery 21: status %d, Retry-After %q, want 429 and some time", w.Code, w.Header().Get("Retry-After"))
		}
		if w := call(h, "POST", "good", proxy); w.Code != 200 {
			t.Errorf("the platform behind the same proxy got %d", w.Code)
		}
		if w := call(h, "POST", "evil", elsewhere); w.Code != 401 {
			t.Errorf("another address got %d, want 401", w.Code)
		}

		// A flood is refused unread, and only as long as it lasts.
		for range 300 {
			call(h, "POST", "evil", proxy)
		}
		if w := call(h, "POST", "good", proxy); w.Code != 429 {
			t.Errorf("in a flood: status %d, want 429", w.Code)
		}
		if w := call(h, "POST", "good", elsewhere); w.Code != 200 {
			t.Errorf("another address in a flood: status %d, want 200", w.Code)
		}
		time.Sleep(time.Second)
		if w := call(h, "POST", "good", proxy); w.Code != 200 {
			t.Errorf("a second after the flood: status %d, want 200", w.Code)
		}
		time.Sleep(time.Minute)
		if w := call(h, "POST", "evil", proxy); w.Code != 401 {
			t.Errorf("a minute after the flood: status %d, want 401", w.Code)
		}
	})
}

func TestWebhookCountsProperAndMalformedRequestsAgainstNobody(t *testing.T) {
	h := adapters.NewWebhook(platform{}, &inbox{}, adapters.WebhookConfig{FailuresPerMinute: 1})
	for range 1000 {
		call(h, "POST", "good", "")
		call(h, "POST", "bad json", "")
	}
	if w := call(h, "POST", "evil", ""); w.Code != 401 {
		t.Errorf("first forgery: status %d, want 401", w.Code)
	}
}

func TestWebhookTrustsNoForwardingHeader(t *testing.T) {
	h := adapters.NewWebhook(platform{}, &inbox{}, adapters.WebhookConfig{FailuresPerMinute: 1})
	codes := map[int]int{}
	for i := range 3 {
		r := httptest.NewRequest("POST", "/", strings.NewReader("evil"))
		r.Header.Set("X-Forwarded-For", fmt.Sprint("198.51.100.", i))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		codes[w.Code]++
	}
	if codes[401] != 1 || codes[429] != 2 {
		t.Errorf("answers %v, want one 401 and two 429", codes)
	}
}

func TestWebhookTakesAnIPv6NetworkAsOneSource(t *testing.T) {
	h := adapters.NewWebhook(platform{}, &inbox{}, adapters.WebhookConfig{FailuresPerMinute: 1})
	call(h, "POST", "evil", "[2001:db8::1]:1")
	if w := call(h, "POST", "evil", "[2001:db8::ffff:2]:1"); w.Code != 429 {
		t.Errorf("same network: status %d, want 429", w.Code)
	}
	if w := call(h, "POST", "evil", "[2001:db8:0:1::1]:1"); w.Code != 401 {
		t.Errorf("another network: status %d, want 401", w.Code)
	}
}

func TestWebhookRemembersABoundedNumberOfForgers(t *testing.T) {
	h := adapters.NewWebhook(platform{}, &inbox{}, adapters.WebhookConfig{})
	for i := range 20_000 {
		from := fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255)
		if w := call(h, "POST", "evil", from); w.Code != 401 {
			t.Fatalf("%s: status %d, want 401", from, w.Code)
		}
	}
}

func serve(t *testing.T, conf adapters.WebhookConfig) *httptest.Server {
	srv := httptest.NewServer(adapters.NewWebhook(platform{}, &inbox{}, conf))
	t.Cleanup(srv.Close)
	return srv
}

// A client that sends all before it reads anything must see the answer too.
func TestWebhookAnswersTenMegabytes(t *testing.T) {
	srv := serve(t, adapters.WebhookConfig{})
	for _, chunked := range []bool{false, true} {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const size = 10 << 20
		body := bytes.Repeat([]byte("x"), size)
		head := fmt.Sprintf("Content-Length: %d\r\n\r\n", size)
		if chunked {
			head = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size)
			body = append(body, "\r\n0\r\n\r\n"...)
		}
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+head); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(body); err != nil {
			t.Fatalf("chunked %v: send: %v", chunked, err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("chunked %v: %v", chunked, err)
		}
		resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("chunked %v: status %d, want 413", chunked, resp.StatusCode)
		}
	}
}

func TestWebhookHangsUpOnABodyThatNeverEnds(t *testing.T) {
	srv := serve(t, adapters.WebhookConfig{BodyTimeout: 50 * time.Millisecond})
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n"); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(conn) // ends when the server hangs up
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(all), "HTTP/1.1 408 ") {
		t.Errorf("answer %q, want 408", all)
	}
}

func BenchmarkWebhook(b *testing.B) {
	h := adapters.NewWebhook(platform{}, discard{}, adapters.WebhookConfig{})
	body := []byte("good")
	w := nopWriter{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		r := &http.Request{Method: "POST", RemoteAddr: "127.0.0.1:1", ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body))}
		h.ServeHTTP(w, r)
	}
}

type discard struct{}

func (discard) Accept(context.Context, ...adapters.InboundMessage) error { return nil }

type nopWriter struct{ h http.Header }

func (w nopWriter) Header() http.Header       { return w.h }
func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }
func (nopWriter) WriteHeader(int)             {}
