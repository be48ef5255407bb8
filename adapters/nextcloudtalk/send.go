package nextcloudtalk

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"trill/adapters"
)

const (
	// requestTimeout is long, because the server lets a wrong signature wait
	// for up to 50 s before it says so.
	requestTimeout = time.Minute
	// bruteForcePause is how long the server refuses an address after too
	// many wrong signatures.
	bruteForcePause = 30 * time.Minute
	maxAnswer       = 64 << 10 // bytes of an answer that are read
	maxReason       = 200      // code points of the server's own words in an error
	minLearnedLimit = minMaxLength
)

// Send posts one message. The server does not tell its id, so that is empty. A
// message it refuses is sent once more without the reference to the message it
// answers, which may have been deleted: the refusal is certain, so nothing can
// appear twice.
func (a *Adapter) Send(ctx context.Context, m adapters.OutboundMessage) (adapters.MessageID, error) {
	text := strings.ToValidUTF8(m.Text, "\ufffd") // what is signed has to be what JSON carries
	if strings.TrimSpace(text) == "" {
		return "", &adapters.SendError{Err: errors.New("post message: nothing but white space")}
	}
	post := posting{Message: text, ReferenceID: m.Key, Silent: m.Silent}
	replyTo, err := strconv.ParseInt(string(m.ReplyTo), 10, 64)
	reply := err == nil && replyTo > 0
	if reply {
		post.ReplyTo = replyTo
	} else {
		post.ThreadID = number(m.Thread)
	}
	answer, err := a.call(ctx, m.Room, "message", "post message", text, post)
	if refusal, ok := errors.AsType[*adapters.SendError](err); ok && reply && refusal.Status == http.StatusBadRequest && answer.ocs {
		post.ReplyTo, post.ThreadID = 0, number(m.Thread)
		_, err = a.call(ctx, m.Room, "message", "post message", text, post)
	}
	if refusal, ok := errors.AsType[*adapters.SendError](err); ok && refusal.Resplit {
		a.shorten(text)
	}
	return "", err
}

// posting is the body of a message.
type posting struct {
	Message     string `json:"message"`
	ReplyTo     int64  `json:"replyTo,omitzero"`
	ThreadID    int64  `json:"threadId,omitzero"` // ignored by servers that have no threads
	ReferenceID string `json:"referenceId,omitempty"`
	Silent      bool   `json:"silent,omitzero"`
}

func number(id adapters.ThreadID) int64 {
	n, err := strconv.ParseInt(string(id), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// shorten halves what Split makes, because the server takes less than we think.
func (a *Adapter) shorten(text string) {
	half := int64(utf8.RuneCountInString(text) / 2)
	a.lower(max(half, minLearnedLimit))
}

func (a *Adapter) lower(limit int64) {
	for {
		now := a.limit.Load()
		if limit >= now || a.limit.CompareAndSwap(now, limit) {
			return
		}
	}
}

// React puts an emoji on a message. Putting it there again changes nothing, so
// an outcome nobody saw is never ambiguous.
func (a *Adapter) React(ctx context.Context, r adapters.Reaction) error {
	if !isID(string(r.Message)) {
		return &adapters.SendError{Err: errors.New("react: no message id")}
	}
	body := struct {
		Reaction string `json:"reaction"`
	}{strings.ToValidUTF8(r.Emoji, "\ufffd")}
	_, err := a.call(ctx, r.Room, "reaction/"+string(r.Message), "react", body.Reaction, body)
	if refusal, ok := errors.AsType[*adapters.SendError](err); ok {
		refusal.Ambiguous = false
	}
	return err
}

// answer is what is left of a response.
type answer struct {
	status int  // of HTTP, or of OCS where that is worse
	ocs    bool // it came from Nextcloud's API and not from something before it
}

// call makes one request of the bot API. The error is a *SendError.
func (a *Adapter) call(ctx context.Context, room adapters.RoomID, path, what, signed string, body any) (answer, error) {
	fail := func(e adapters.SendError, format string, args ...any) (answer, error) {
		e.Err = fmt.Errorf(what+": "+format, args...)
		return answer{status: e.Status}, &e
	}
	if !isToken(string(room)) {
		return fail(adapters.SendError{Scope: adapters.ScopeRoom}, "no room of this server")
	}
	payload, err := json.Marshal(body)
	if err != nil {
		return fail(adapters.SendError{}, "encode: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var wire wire
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, wire.trace()),
		http.MethodPost, a.base+string(room)+"/"+path, bytes.NewReader(payload))
	if err != nil {
		return fail(adapters.SendError{}, "%w", err)
	}
	a.address(req)
	random := newRandom()
	sum := a.sign(random, []byte(signed))
	req.Header["Content-Type"] = []string{"application/json"}
	req.Header["X-Nextcloud-Talk-Bot-Random"] = []string{random}
	req.Header["X-Nextcloud-Talk-Bot-Signature"] = []string{hex.EncodeToString(sum[:])}

	resp, err := a.client.Do(req)
	if err != nil {
		// Until there was a connection nothing can have been posted.
		return fail(adapters.SendError{Retry: true, Ambiguous: wire.connected.Load()}, "%w", plain(err))
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	meta, ocs := readMeta(raw)
	got, err := a.judge(answer{worse(resp.StatusCode, meta.code), ocs}, resp, meta.reason, err, fail)
	got.ocs = ocs
	return got, err
}

// address sets the headers every request needs.
func (a *Adapter) address(req *http.Request) {
	req.Host = a.conf.Host // empty: the host of the address
	req.Header["Ocs-Apirequest"] = []string{"true"}
	req.Header["Accept"] = []string{"application/json"}
	req.Header["User-Agent"] = []string{"Trill"}
}

// judge turns the answer into what follows from it.
func (a *Adapter) judge(got answer, resp *http.Response, reason string, readErr error,
	fail func(adapters.SendError, string, ...any) (answer, error)) (answer, error) {
	status := fmt.Sprintf("%d %s", got.status, http.StatusText(got.status))
	if reason != "" && reason != "OK" {
		status += " (" + strings.ReplaceAll(reason, a.conf.Secret.Reveal(), "***") + ")"
	}
	e := adapters.SendError{Status: got.status}
	switch code := got.status; {
	case code == http.StatusCreated, code == http.StatusOK && got.ocs:
		return got, nil
	case code == http.StatusOK:
		e.Retry, e.Ambiguous = true, true
		if readErr != nil {
			return fail(e, "the answer broke off: %w", plain(readErr))
		}
		return fail(e, "the answer is not Nextcloud's: something in between, such as a login page, took the request")
	case code < 400:
		e.Scope = adapters.ScopeChannel
		return fail(e, "%s: redirected to %q: set url to where the server really is", status, origin(resp.Header.Get("Location")))
	case code == http.StatusBadRequest && !got.ocs:
		e.Scope = adapters.ScopeChannel
		return fail(e, "%s: the server refuses this host name: add it to trusted_domains there, or set host here", status)
	case code == http.StatusUnauthorized:
		e.Scope = adapters.ScopeRoom
		return fail(e, "%s: the bot is not enabled in this room, or the secret is wrong", status)
	case code == http.StatusForbidden:
		e.Scope = adapters.ScopeRoom
		return fail(e, "%s", status)
	case code == http.StatusPreconditionFailed:
		e.Scope = adapters.ScopeChannel
		return fail(e, "%s: something in between removes the header OCS-APIRequest", status)
	case code == http.StatusRequestEntityTooLarge:
		e.Resplit = true
		return fail(e, "%s: the message is too long", status)
	case code == http.StatusTooManyRequests:
		e.Retry, e.Scope = true, adapters.ScopeChannel
		e.After = max(bruteForcePause, retryAfter(resp))
		return fail(e, "%s: the server locked this address out after wrong signatures; occ security:bruteforce:reset lets it in", status)
	case code == http.StatusServiceUnavailable:
		e.Retry, e.After = true, retryAfter(resp)
		return fail(e, "%s: the server is in maintenance mode or overloaded", status)
	case code >= 500, code == http.StatusRequestTimeout:
		e.Retry, e.Ambiguous, e.After = true, true, retryAfter(resp)
		return fail(e, "%s", status)
	default:
		return fail(e, "%s", status)
	}
}

// wire knows whether a request can have reached the server.
type wire struct{ connected atomic.Bool }

// trace follows the connections of one request. The transport takes a second one
// only when it knows that nothing was written to the first.
func (w *wire) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { w.connected.Store(false) },
		GotConn: func(httptrace.GotConnInfo) { w.connected.Store(true) },
	}
}

// plain takes the address out of an error of the HTTP client.
func plain(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// newRandom returns a random that the server accepts and that has the length we
// demand of it.
func newRandom() string {
	var b [randomLength / 2]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// meta is the verdict inside an answer.
type meta struct {
	code   int
	reason string
}

// readMeta reads an answer of the OCS API.
func readMeta(raw []byte) (m meta, ok bool) {
	var body struct {
		OCS struct {
			Meta struct {
				Code    int    `json:"statuscode"`
				Message string `json:"message"`
			} `json:"meta"`
		} `json:"ocs"`
	}
	if json.Unmarshal(raw, &body) != nil || body.OCS.Meta.Code == 0 {
		return meta{}, false
	}
	return meta{body.OCS.Meta.Code, clean(body.OCS.Meta.Message, maxReason)}, true
}

// worse returns the code that decides: an OCS answer can carry a failure in a
// success of HTTP. 100 is the success of its first version.
func worse(status, ocs int) int {
	if status < 300 && ocs >= 300 && ocs < 600 {
		return ocs
	}
	return status
}

// retryAfter reads the header in seconds or as a date, at most a day.
func retryAfter(resp *http.Response) time.Duration {
	v := resp.Header.Get("Retry-After")
	var d time.Duration
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		d = time.Duration(n) * time.Second
	} else if t, err := http.ParseTime(v); err == nil {
		d = time.Until(t)
	}
	return min(max(d, 0), 24*time.Hour)
}
