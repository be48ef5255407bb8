package openai

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	gopenai "github.com/sashabaranov/go-openai"

	"trill/engine/provider"
)

const (
	maxRefusal = 64 << 10 // bytes read of an answer that is an error
	maxList    = 8 << 20  // bytes read of a list of models
	// tail is how long a complete message waits for what may follow it, the
	// usage and the stream's end.
	tail = 5 * time.Second
	// drainTime is how long the connection may take to become free again.
	drainTime = 100 * time.Millisecond
)

var (
	errStalled = errors.New("the server fell silent")
	errTooLong = errors.New("the call took too long")
)

// exchange is one HTTP request and its answer. It is the transport that
// go-openai is given, and does what that leaves undone: it watches for stalls,
// bounds what is read, and turns a refusal into an error before its body can
// become part of a text.
type exchange struct {
	caller context.Context // as the caller gave it
	ctx    context.Context // ends with caller, or with a stall
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
	stall  *time.Timer
	idle   time.Duration
	body   []byte // sent in place of go-openai's; nil for a GET
	http   *http.Client
	client *gopenai.Client
	answer io.ReadCloser // nil until there is one
}

func (p *Provider) exchange(ctx context.Context, body []byte) *exchange {
	x := &exchange{caller: ctx, idle: p.conf.Idle, body: body, http: p.http}
	ctx, x.stop = context.WithTimeoutCause(ctx, p.conf.Total, errTooLong)
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	x.stall = time.AfterFunc(p.conf.FirstByte, func() { x.cancel(errStalled) })
	conf := gopenai.DefaultConfig(p.key())
	conf.BaseURL = p.conf.BaseURL
	conf.HTTPClient = x
	conf.EmptyMessagesLimit = 1 << 31 // keep-alives are bounded by time and bytes
	x.client = gopenai.NewClientWithConfig(conf)
	return x
}

// close ends the exchange. Whatever still ran for it ends too.
func (x *exchange) close() {
	x.stall.Stop()
	x.cancel(nil)
	x.stop()
	if x.answer != nil {
		x.answer.Close()
	}
}

// Do sends the request. It returns an answer only if that is the one wanted, and
// otherwise a *provider.Error.
func (x *exchange) Do(req *http.Request) (*http.Response, error) {
	if x.body != nil {
		req.Body = io.NopCloser(bytes.NewReader(x.body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.body)), nil }
		req.ContentLength = int64(len(x.body))
	}
	// A compressed stream arrives in gulps, and a small one grows without bound.
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "trill")
	resp, err := x.http.Do(req)
	if err != nil {
		return nil, err
	}
	x.answer = resp.Body
	x.stall.Stop()
	body := &watched{x: x, r: resp.Body}
	switch kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, &provider.Error{Class: provider.ClassRequest, Status: resp.StatusCode,
			Err: errors.New("the server redirects, which is not followed: set base_url to where the API really is")}
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, refused(resp, body)
	case kind == "text/html":
		return nil, &provider.Error{Class: provider.ClassRetry, Status: resp.StatusCode,
			Err: errors.New("the server answered with a web page: check base_url")}
	case x.body == nil:
		resp.Body = bounded{io.LimitReader(body, maxList), resp.Body}
	default:
		// Some servers stream under a wrong type, so the first byte decides.
		peeked := bufio.NewReaderSize(body, 16<<10)
		if kind == "application/json" {
			if first, _ := peeked.Peek(1); string(first) == "{" {
				return nil, unstreamed(resp, peeked)
			}
		}
		resp.Body = bounded{&lines{r: peeked, left: maxStream}, resp.Body}
	}
	return resp, nil
}

// refused reads a refusal. What can be read of the body tells more than the
// status; that it breaks off changes nothing.
func refused(resp *http.Response, body io.Reader) error {
	text, _ := io.ReadAll(io.LimitReader(body, maxRefusal))
	e := refusal(resp.StatusCode, text)
	e.RetryAfter = retryAfter(resp.Header, time.Now())
	return e
}

// unstreamed reads an answer that is one piece of JSON: a refusal from a server
// that knows no status, or an answer that should have been streamed.
func unstreamed(resp *http.Response, body io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(body, maxRefusal))
	if err != nil {
		return err
	}
	if e := embedded(text); e != nil {
		e.RetryAfter = retryAfter(resp.Header, time.Now())
		return e
	}
	return &provider.Error{Class: provider.ClassRequest, Status: resp.StatusCode,
		Err: errors.New("the server does not stream its answer")}
}

// hurry allows no more silence than a complete message is worth.
func (x *exchange) hurry() { x.idle = min(x.idle, tail) }

// drain reads what is left after the end of the stream, without which the
// connection is not used again.
func (x *exchange) drain() {
	x.idle = min(x.idle, drainTime)
	_, _ = io.CopyN(io.Discard, &watched{x: x, r: x.answer}, 4<<10)
}

// fault says why the exchange gave nothing: the caller's context if that is
// done, and a *provider.Error otherwise.
func (x *exchange) fault(err error) error {
	if err := x.caller.Err(); err != nil {
		return err
	}
	if e, ok := errors.AsType[*provider.Error](err); ok {
		return e
	}
	if cause := context.Cause(x.ctx); errors.Is(cause, errStalled) || errors.Is(cause, errTooLong) {
		return &provider.Error{Class: provider.ClassRetry, Err: cause}
	}
	// A *url.Error tells the whole URL, of which the host is enough.
	if u, ok := errors.AsType[*url.Error](err); ok {
		host := u.URL
		if parsed, perr := url.Parse(u.URL); perr == nil {
			host = parsed.Host
		}
		err = fmt.Errorf("call %s: %w", host, u.Err)
	}
	return &provider.Error{Class: provider.ClassRetry, Err: err}
}

// watched reads the answer while the stall timer runs. The timer runs only
// inside of Read: how long the caller takes for a piece is no stall.
type watched struct {
	x *exchange
	r io.Reader
}

func (w *watched) Read(p []byte) (int, error) {
	w.x.stall.Reset(w.x.idle)
	n, err := w.r.Read(p)
	w.x.stall.Stop()
	return n, err
}

// bounded is a body that is read through something else.
type bounded struct {
	io.Reader
	io.Closer
}
