// Package talktest is a Nextcloud server as far as a Talk bot sees one: it sends
// signed webhooks and takes signed messages and reactions, with the answers,
// limits and oddities that were measured on a real one (Nextcloud 31, Talk 21).
// It serves tests, the demo and benchmarks, and imports no testing package.
package talktest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"trill/adapters/nextcloudtalk"
)

const (
	maxBody = 4 << 20
	// bruteForceAt is the wrong signature that is answered 500; all that
	// follows is answered 429.
	bruteForceAt  = 11
	bruteForceAge = 30 * time.Minute
)

// Config is a server; zero fields have the defaults named.
type Config struct {
	Secret  string // of the bot; required
	BotURL  string // where webhooks go; see [Server.SetBot]
	BotName string // "Trill"
	// WebhookURL is the address the bot was installed with, which its id
	// follows from; BotURL.
	WebhookURL string
	// Backend is what webhooks name as their server; the address of [Server.Start].
	Backend      string
	Version      string   // of Talk; "21.1.0"
	MaxLength    int      // of a message, in code points; 32000
	TrustedHosts []string // Host headers that are answered; any
	// Reactions is set when the bot has the feature "reaction": it then hears of
	// its own reactions too.
	Reactions bool
	// Accounts are the users who can log in, with their app passwords. They see
	// the rooms that [Server.AddParticipant] put them in.
	Accounts map[string]string
	Now      func() time.Time // time.Now
}

// Posted is a message of the bot that people in the room see.
type Posted struct {
	ID          int64
	Room        string
	Actor       string // the bot's id
	Text        string
	ReplyTo     int64 // 0: none
	ThreadID    int64 // 0: none
	ReferenceID string
	Silent      bool
	Mentions    []string // who was notified, as written: bob, all, group/x
	At          time.Time
}

// Server is the fake. Its methods may be called from several goroutines at once.
type Server struct {
	conf   Config
	client *http.Client
	mux    *http.ServeMux

	http  *http.Server
	done  chan struct{}  // closed when the listener is
	hooks sync.WaitGroup // webhooks on their way

	mu        sync.Mutex // guards what follows
	live      live
	rooms     map[string]*room
	nextID    int64
	posted    []Posted
	changed   chan struct{} // closed and made anew when posted grows
	reactions map[reactionKey]bool
	order     []reactionKey // of reactions, as they were put
	wrong     map[string][]time.Time
	calls     []Call
	faults    []fault
	latency   func(*http.Request)
	offline   bool // maintenance
}

// live is what can change while the server runs.
type live struct{ botURL, backend string }

type room struct {
	name     string
	enabled  bool
	messages map[int64]note
	members  map[string]bool // user ids
}

func newRoom(name string) *room {
	return &room{name: name, messages: make(map[int64]note), members: make(map[string]bool)}
}

// note is a message in a room.
type note struct {
	actor, name, text string
	reference         string
	event             string // what the server reports with it; empty: nothing
	at                time.Time
}

// ReactionOn is an emoji of the bot on a message.
type ReactionOn struct {
	Room    string
	Message int64
	Emoji   string
}

type reactionKey = ReactionOn

// Call is a request of the bot API, or of an account, and its answer.
type Call struct {
	Method, Path string
	Status       int // 0: the connection was cut
}

// New returns a server. Without [Server.Start] it is an http.Handler.
func New(conf Config) *Server {
	if conf.BotName == "" {
		conf.BotName = "Trill"
	}
	if conf.Version == "" {
		conf.Version = "21.1.0"
	}
	if conf.MaxLength == 0 {
		conf.MaxLength = 32_000
	}
	if conf.Now == nil {
		conf.Now = time.Now
	}
	s := &Server{
		conf: conf,
		client: &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute},
			Timeout:   5 * time.Second, // as the real one
		},
		mux:       http.NewServeMux(),
		live:      live{conf.BotURL, conf.Backend},
		rooms:     make(map[string]*room),
		changed:   make(chan struct{}),
		reactions: make(map[reactionKey]bool),
		wrong:     make(map[string][]time.Time),
	}
	for _, version := range []string{"v1.php", "v2.php"} {
		s.mux.HandleFunc("/ocs/"+version+"/cloud/capabilities", s.capabilities)
		s.mux.HandleFunc("/ocs/"+version+"/cloud/user", s.user)
		s.mux.HandleFunc("/ocs/"+version+"/apps/spreed/api/v1/chat/{token}", s.history)
		s.mux.HandleFunc("/ocs/"+version+"/apps/spreed/api/v1/bot/{token}/message", s.message)
		s.mux.HandleFunc("/ocs/"+version+"/apps/spreed/api/v1/bot/{token}/reaction/{id}", s.reaction)
	}
	return s
}

// Start listens on a free port of 127.0.0.1 and returns the server's address.
func (s *Server) Start() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("start nextcloud: %w", err)
	}
	url := "http://" + l.Addr().String()
	s.mu.Lock()
	if s.live.backend == "" {
		s.live.backend = url + "/"
	}
	s.mu.Unlock()
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // ends with Close
	}()
	return url, nil
}

// Close stops the server and waits for webhooks that are on their way.
func (s *Server) Close() error {
	s.hooks.Wait()
	s.client.CloseIdleConnections()
	if s.http == nil {
		return nil
	}
	err := s.http.Close()
	<-s.done
	return err
}

// SetBot changes where webhooks go.
func (s *Server) SetBot(url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live.botURL = url
}

// BotID returns the bot's actor id.
func (s *Server) BotID() string {
	if s.conf.WebhookURL != "" {
		return nextcloudtalk.BotID(s.conf.WebhookURL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.botID()
}

func (s *Server) botID() string {
	if s.conf.WebhookURL != "" {
		return nextcloudtalk.BotID(s.conf.WebhookURL)
	}
	return nextcloudtalk.BotID(s.live.botURL)
}

// Messages returns what the bot posted in a room, oldest first; of all rooms
// when it is empty.
func (s *Server) Messages(room string) []Posted {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ms []Posted
	for _, p := range s.posted {
		if room == "" || p.Room == room {
			ms = append(ms, p)
		}
	}
	return ms
}

// Reactions returns the bot's emoji in a room in the order they were put.
func (s *Server) Reactions(room string) []ReactionOn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rs []ReactionOn
	for _, r := range s.order {
		if r.Room == room && s.reactions[r] {
			rs = append(rs, r)
		}
	}
	return rs
}

// Calls returns the requests of the bot API and of accounts so far.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Watch yields every message of the bot, from the first on, as it appears, until
// ctx is done.
func (s *Server) Watch(ctx context.Context) iter.Seq[Posted] {
	return func(yield func(Posted) bool) {
		for next := 0; ; {
			s.mu.Lock()
			fresh, changed := s.posted[next:len(s.posted):len(s.posted)], s.changed
			s.mu.Unlock()
			for _, p := range fresh {
				if !yield(p) {
					return
				}
			}
			if next += len(fresh); len(fresh) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// WaitFor returns the first message of the bot, of those it posted before too,
// for which match is true.
func (s *Server) WaitFor(ctx context.Context, match func(Posted) bool) (Posted, error) {
	for p := range s.Watch(ctx) {
		if match(p) {
			return p, nil
		}
	}
	return Posted{}, fmt.Errorf("wait for a message of the bot: %w", context.Cause(ctx))
}

// fault is what becomes of one call.
type fault struct {
	status     int
	retryAfter string
	drop       bool // store, then cut the connection
}

// FailNext answers the next n messages and reactions with the status and does
// nothing else.
func (s *Server) FailNext(n, status int) { s.addFaults(n, fault{status: status}) }

// FailNextAfter is FailNext with a Retry-After header.
func (s *Server) FailNextAfter(n, status int, retryAfter string) {
	s.addFaults(n, fault{status: status, retryAfter: retryAfter})
}

// DropNext takes the next n messages or reactions and cuts the connection instead
// of answering.
func (s *Server) DropNext(n int) { s.addFaults(n, fault{drop: true}) }

func (s *Server) addFaults(n int, f fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, slices.Repeat([]fault{f}, n)...)
}

// Maintenance turns maintenance mode on or off.
func (s *Server) Maintenance(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offline = on
}

// Latency is called at the start of every request; it may wait. nil ends that.
func (s *Server) Latency(wait func(*http.Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = wait
}

// ForgetWrongSignatures is `occ security:bruteforce:reset`.
func (s *Server) ForgetWrongSignatures() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.wrong)
}

// ServeHTTP answers as Nextcloud does.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	wait, offline := s.latency, s.offline
	s.mu.Unlock()
	if wait != nil {
		wait(r)
	}
	switch {
	case len(s.conf.TrustedHosts) > 0 && !slices.Contains(s.conf.TrustedHosts, r.Host):
		w.Header().Set("Content-Type", "text/html; charset=UTF-8")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "<!DOCTYPE html><html><body><h2>Access through untrusted domain</h2></body></html>")
	case offline:
		w.Header().Set("Content-Type", "application/xml; charset=utf-8")
		w.Header().Set("X-Nextcloud-Maintenance-Mode", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `<?xml version="1.0"?><d:error xmlns:d="DAV:"><s:message>System in maintenance mode.</s:message></d:error>`)
	default:
		s.mux.ServeHTTP(w, r)
	}
}

// reply writes an OCS answer, in XML unless JSON was asked for.
func reply(w http.ResponseWriter, r *http.Request, status int, message string, data any) {
	replyWith(w, r, status, status, message, data)
}

// replyWith writes an answer whose body has a code of its own.
func replyWith(w http.ResponseWriter, r *http.Request, status, code int, message string, data any) {
	word := "ok"
	if status >= 300 {
		word = "failure"
	}
	if strings.HasPrefix(r.URL.Path, "/ocs/v1.php/") {
		status = http.StatusOK // the first version always is a success of HTTP
		if code == http.StatusOK {
			code = 100
		}
	}
	if r.URL.Query().Get("format") != "json" && !strings.Contains(r.Header.Get("Accept"), "json") {
		w.Header().Set("Content-Type", "application/xml; charset=utf-8")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "<?xml version=\"1.0\"?>\n<ocs>\n <meta>\n  <status>%s</status>\n  <statuscode>%d</statuscode>\n  <message>%s</message>\n </meta>\n <data/>\n</ocs>\n", word, code, message)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"ocs": map[string]any{
		"meta": map[string]any{"status": word, "statuscode": code, "message": message},
		"data": data,
	}})
}

func (s *Server) capabilities(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("OCS-APIRequest") != "true" {
		reply(w, r, http.StatusPreconditionFailed, "CSRF check failed", nil)
		return
	}
	reply(w, r, http.StatusOK, "OK", map[string]any{
		"version": map[string]any{"major": 31, "string": "31.0.6"},
		"capabilities": map[string]any{"spreed": map[string]any{
			"features": []string{"audio", "video", "chat-v2", "bots-v1", "chat-reference-id", "silent-send"},
			"config":   map[string]any{"chat": map[string]any{"max-length": s.conf.MaxLength}},
			"version":  s.conf.Version,
		}},
	})
}

// refusal is an answer other than success.
type refusal struct {
	status  int
	message string
}

func (r refusal) Error() string { return r.message }

func (s *Server) message(w http.ResponseWriter, r *http.Request) {
	s.answer(w, r, []string{http.MethodPost}, "message", s.post)
}

func (s *Server) reaction(w http.ResponseWriter, r *http.Request) {
	s.answer(w, r, []string{http.MethodPost, http.MethodDelete}, "reaction", s.react)
}

// answer is what both endpoints do around their work: one call, one fault.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, methods []string, signed string,
	work func(*http.Request, *room, map[string]any) (int, error)) {
	status, err, drop := s.handle(r, methods, signed, work, w.Header())
	s.mu.Lock()
	call := Call{Method: r.Method, Path: r.URL.Path, Status: status}
	if drop {
		call.Status = 0
	}
	s.calls = append(s.calls, call)
	s.mu.Unlock()
	if drop {
		panic(http.ErrAbortHandler)
	}
	message := "OK"
	if err != nil {
		message = err.Error()
	}
	reply(w, r, status, message, nil)
}

func (s *Server) handle(r *http.Request, methods []string, signed string,
	work func(*http.Request, *room, map[string]any) (int, error), header http.Header) (status int, err error, drop bool) {
	s.mu.Lock()
	var f fault
	if len(s.faults) > 0 {
		f, s.faults = s.faults[0], s.faults[1:]
	}
	s.mu.Unlock()
	if f.status != 0 {
		if f.retryAfter != "" {
			header.Set("Retry-After", f.retryAfter)
		}
		return f.status, refusal{f.status, "scripted"}, false
	}
	status, err = s.authorized(r, methods, signed, work)
	if refused, ok := errors.AsType[refusal](err); ok {
		status = refused.status
	}
	return status, err, f.drop
}

// authorized does the work for a proper request.
func (s *Server) authorized(r *http.Request, methods []string, signed string,
	work func(*http.Request, *room, map[string]any) (int, error)) (int, error) {
	if !slices.Contains(methods, r.Method) {
		return 0, refusal{http.StatusMethodNotAllowed, "Method not allowed"}
	}
	if r.Header.Get("OCS-APIRequest") != "true" {
		return 0, refusal{http.StatusPreconditionFailed, "CSRF check failed"}
	}
	fields, err := readFields(r)
	if err != nil {
		return 0, refusal{http.StatusBadRequest, ""}
	}
	from, _, _ := net.SplitHostPort(r.RemoteAddr)

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrongSince(from) >= bruteForceAt {
		return 0, refusal{http.StatusTooManyRequests, "Reached maximum delay"}
	}
	random, signature := r.Header.Get("X-Nextcloud-Talk-Bot-Random"), r.Header.Get("X-Nextcloud-Talk-Bot-Signature")
	if len(random) < 32 || signature == "" {
		return 0, refusal{http.StatusBadRequest, ""}
	}
	text, _ := fields[signed].(string)
	want := nextcloudtalk.SignRequest(s.conf.Secret, random, []byte(text))
	in, ok := s.rooms[r.PathValue("token")]
	if !hmac.Equal([]byte(want), []byte(strings.ToLower(signature))) || !ok || !in.enabled {
		s.wrong[from] = append(s.wrong[from], s.conf.Now())
		if len(s.wrong[from]) == bruteForceAt {
			return 0, refusal{http.StatusInternalServerError, "Internal Server Error"}
		}
		return 0, refusal{http.StatusUnauthorized, ""}
	}
	return work(r, in, fields)
}

// wrongSince counts the wrong signatures of an address that still matter.
func (s *Server) wrongSince(from string) int {
	if len(s.wrong[from]) == 0 {
		return 0
	}
	old := s.conf.Now().Add(-bruteForceAge)
	s.wrong[from] = slices.DeleteFunc(s.wrong[from], func(t time.Time) bool { return !t.After(old) })
	return len(s.wrong[from])
}

// readFields reads a JSON or form body.
func readFields(r *http.Request) (map[string]any, error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	fields := make(map[string]any)
	if kind == "application/x-www-form-urlencoded" || kind == "multipart/form-data" {
		if err := r.ParseForm(); err != nil {
			return nil, err
		}
		for k := range r.Form {
			fields[k] = r.Form.Get(k)
		}
		return fields, nil
	}
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return fields, d.Decode(&fields)
}

// integer reads a number or the text of one, 0 when it is absent.
func integer(v any) int64 {
	switch v := v.(type) {
	case json.Number:
		n, _ := v.Int64()
		return n
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return n
	}
	return 0
}

// post makes a message of the bot visible.
func (s *Server) post(r *http.Request, in *room, fields map[string]any) (int, error) {
	text, _ := fields["message"].(string)
	text = strings.Trim(text, " \t\n\r\x00\x0b")
	reference, _ := fields["referenceId"].(string)
	silent := fields["silent"] == true || fields["silent"] == "true"
	replyTo := integer(fields["replyTo"])
	if text == "" {
		return 0, refusal{http.StatusBadRequest, "message"}
	}
	if replyTo != 0 {
		if _, ok := in.messages[replyTo]; !ok {
			return 0, refusal{http.StatusBadRequest, "reply-to"}
		}
	}
	if utf8.RuneCountInString(text) > s.conf.MaxLength {
		return 0, refusal{http.StatusRequestEntityTooLarge, "message"}
	}
	s.nextID++
	p := Posted{
		ID: s.nextID, Room: r.PathValue("token"), Actor: s.botID(), Text: text, ReplyTo: replyTo,
		ThreadID: integer(fields["threadId"]), ReferenceID: strings.TrimSpace(reference), Silent: silent,
		At: s.conf.Now(),
	}
	if !silent {
		p.Mentions = Mentions(text)
	}
	in.messages[p.ID] = note{actor: p.Actor, name: s.conf.BotName + " (Bot)", text: text, reference: p.ReferenceID, at: p.At}
	s.posted = append(s.posted, p)
	close(s.changed)
	s.changed = make(chan struct{})
	return http.StatusCreated, nil // and no id
}

// react puts or removes an emoji of the bot.
func (s *Server) react(r *http.Request, in *room, fields map[string]any) (int, error) {
	emoji, _ := fields["reaction"].(string)
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return 0, refusal{http.StatusNotFound, ""}
	}
	on, ok := in.messages[id]
	key := reactionKey{r.PathValue("token"), id, emoji}
	switch {
	case !isEmoji(emoji):
		return 0, refusal{http.StatusBadRequest, "reaction"}
	case !ok:
		return 0, refusal{http.StatusNotFound, ""}
	case on.event != "":
		return 0, refusal{http.StatusBadRequest, ""}
	case r.Method == http.MethodDelete:
		if !s.reactions[key] {
			return 0, refusal{http.StatusNotFound, ""}
		}
		delete(s.reactions, key)
		s.order = slices.DeleteFunc(s.order, func(k reactionKey) bool { return k == key })
		return http.StatusOK, nil
	case s.reactions[key]:
		return http.StatusOK, nil
	}
	s.reactions[key] = true
	s.order = append(s.order, key)
	if s.conf.Reactions && s.live.botURL != "" {
		// The bot hears of its own reaction, in the name of the author.
		body := s.likeBody(key, on)
		s.hooks.Go(func() { _, _ = s.Deliver(context.Background(), body) })
	}
	return http.StatusCreated, nil
}

// newRandom is the 64 characters of base64 that the server draws.
func newRandom() string {
	var b [48]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.StdEncoding.EncodeToString(b[:])
}
