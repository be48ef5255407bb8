// Package openaitest plays a server with OpenAI's chat API, for tests, for
// benchmarks and as a process of its own in crash tests. It answers by script,
// by a function, or, without either, at once with the request's own words.
//
// It is deliberately able to be wrong: a [Reply] is made of [Part]s that are
// written as they are, so streams can break off, lack their end, stall, or
// carry what no server should send.
package openaitest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Request is one call, as it came.
type Request struct {
	Method string
	Path   string
	Header http.Header
	Raw    []byte // the body
	Remote string // the caller's address: the same on a connection used again

	// What follows is decoded from the body.
	Model               string    `json:"model"`
	Messages            []Message `json:"messages"`
	Tools               []Tool    `json:"tools"`
	Stream              bool      `json:"stream"`
	MaxTokens           int       `json:"max_tokens"`
	MaxCompletionTokens int       `json:"max_completion_tokens"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// Last returns the text of the newest message.
func (r *Request) Last() string {
	if len(r.Messages) == 0 {
		return ""
	}
	return r.Messages[len(r.Messages)-1].Text()
}

// Message is one entry of the conversation.
type Message struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"` // nil where it is null or missing
	ToolCalls []ToolCall `json:"tool_calls"`
	CallID    string     `json:"tool_call_id"`
}

// Text returns the content, empty where there is none.
func (m Message) Text() string {
	if m.Content == nil {
		return ""
	}
	return *m.Content
}

// ToolCall is a call in the history.
type ToolCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// Tool is what the model may call.
type Tool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// keep is how many requests are remembered.
const keep = 1000

// maxBody bounds a request.
const maxBody = 64 << 20

// Server is a model server on a loopback address. Its methods may be called from
// several goroutines at once.
type Server struct {
	http   *http.Server
	addr   string
	served atomic.Int64
	done   chan struct{} // closed when Serve has returned

	mu       sync.Mutex // guards what follows
	script   []Reply
	handle   func(*Request) Reply
	models   []string
	requests []*Request
}

// Start returns a server that listens on addr, "127.0.0.1:0" where any free port
// will do.
func Start(addr string) (*Server, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("start model server: %w", err)
	}
	s := &Server{addr: l.Addr().String(), done: make(chan struct{}), models: []string{"echo"}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("GET /v1/models", s.list)
	s.http = &http.Server{Handler: mux}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // ends with Close, which is no news
	}()
	return s, nil
}

// URL is the base URL of the API.
func (s *Server) URL() string { return "http://" + s.addr + "/v1" }

// Close ends the server and every answer that is under way.
func (s *Server) Close() {
	_ = s.http.Close()
	<-s.done
}

// Script adds replies, each for one request. Once they are used up, the function
// given to Handle answers, or the echo.
func (s *Server) Script(replies ...Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = append(s.script, replies...)
}

// Handle sets what answers requests that the script does not; nil means the
// echo. The function may be called from several goroutines at once.
func (s *Server) Handle(f func(*Request) Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle = f
}

// SetModels sets the ids that GET /models lists.
func (s *Server) SetModels(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models = ids
}

// Requests returns the newest requests, at most 1,000, the oldest first.
func (s *Server) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Served returns how many requests have come.
func (s *Server) Served() int64 { return s.served.Load() }

// scripted takes the next reply of the script, if there is one.
func (s *Server) scripted() (Reply, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.script) == 0 {
		return Reply{}, false
	}
	r := s.script[0]
	s.script = s.script[1:]
	return r, true
}

func (s *Server) record(req *Request) {
	s.served.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == keep {
		s.requests = s.requests[:copy(s.requests, s.requests[1:])]
	}
	s.requests = append(s.requests, req)
}

func (s *Server) read(w http.ResponseWriter, r *http.Request) *Request {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "request too large or cut off", http.StatusBadRequest)
		return nil
	}
	req := &Request{Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Raw: raw, Remote: r.RemoteAddr}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, req); err != nil {
			Failure(http.StatusBadRequest, "invalid_request_error", "not the JSON of a request").write(w, r)
			return nil
		}
	}
	s.record(req)
	return req
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	req := s.read(w, r)
	if req == nil {
		return
	}
	reply, ok := s.scripted()
	if !ok {
		s.mu.Lock()
		handle := s.handle
		s.mu.Unlock()
		if handle == nil {
			handle = Echo
		}
		reply = handle(req)
	}
	reply.write(w, r)
}

// list answers for the models, unless the script has something else to say.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	if s.read(w, r) == nil {
		return
	}
	if reply, ok := s.scripted(); ok {
		reply.write(w, r)
		return
	}
	s.mu.Lock()
	models := s.models
	s.mu.Unlock()
	type model struct {
		ID     string `json:"id"`
		Object string `json:"object"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list"}
	for _, id := range models {
		list.Data = append(list.Data, model{id, "model"})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list) // a caller that left needs no answer
}

// Reply is what the server does with one request.
type Reply struct {
	Status int         // 0 means 200
	Header http.Header // added to the answer's
	Parts  []Part      // written one by one
}

// Part is a piece of an answer. The stream is flushed after each.
type Part struct {
	Wait <-chan struct{} // until this is closed, or the caller has left
	Raw  string          // written as it is
	Cut  bool            // the connection is broken off here
}

// With returns the reply with more parts at its end.
func (r Reply) With(parts ...Part) Reply {
	r.Parts = append(slices.Clip(r.Parts), parts...)
	return r
}

// WithHeader returns the reply with a header.
func (r Reply) WithHeader(key, value string) Reply {
	r.Header = r.Header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Set(key, value)
	return r
}

func (r Reply) write(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for k, v := range r.Header {
		w.Header()[k] = v
	}
	if r.Status != 0 {
		w.WriteHeader(r.Status)
	}
	flush := http.NewResponseController(w)
	for i, p := range r.Parts {
		if p.Wait != nil {
			_ = flush.Flush() // a caller that left is noticed below
			select {
			case <-p.Wait:
			case <-req.Context().Done():
				return
			}
		}
		if p.Cut {
			_ = flush.Flush()
			panic(http.ErrAbortHandler)
		}
		if _, err := io.WriteString(w, p.Raw); err != nil {
			return
		}
		if i+1 < len(r.Parts) && flush.Flush() != nil {
			return
		}
	}
}

// Stream returns a reply of these parts.
func Stream(parts ...Part) Reply { return Reply{Parts: parts} }

// Text returns a whole answer, cut into so many deltas, with its usage.
func Text(text string, deltas int) Reply {
	var parts []Part
	for i, runes := 0, []rune(text); i < deltas; i++ {
		parts = append(parts, Content(string(runes[len(runes)*i/deltas:len(runes)*(i+1)/deltas])))
	}
	return Stream(parts...).With(Finish("stop"), Usage(100, len(text)/4), Done())
}

// Call is a tool call to be sent.
type Call struct {
	ID, Name, Args string
}

// Calls returns an answer of tool calls, each cut into three deltas.
func Calls(calls ...Call) Reply {
	var r Reply
	for i, c := range calls {
		half := len(c.Args) / 2
		r = r.With(
			CallDelta(i, c.ID, c.Name, ""),
			CallDelta(i, "", "", c.Args[:half]),
			CallDelta(i, "", "", c.Args[half:]))
	}
	return r.With(Finish("tool_calls"), Usage(100, 10), Done())
}

// Failure returns a refusal in OpenAI's form.
func Failure(status int, code, text string) Reply {
	return Reply{Status: status, Parts: []Part{{Raw: encode(map[string]any{
		"error": map[string]any{"message": text, "type": code, "param": nil, "code": code},
	})}}}.WithHeader("Content-Type", "application/json")
}

// Page returns an answer of HTML, as proxies give.
func Page(status int) Reply {
	return Reply{Status: status, Parts: []Part{{Raw: "<html><body><h1>Bad Gateway</h1></body></html>"}}}.
		WithHeader("Content-Type", "text/html; charset=utf-8")
}

// Echo answers a request with its newest text, in one write.
func Echo(req *Request) Reply {
	text := req.Last()
	return Stream(Part{Raw: Content(text).Raw + Finish("stop").Raw +
		Usage(len(req.Raw)/4, len(text)/4).Raw + Done().Raw})
}

// Event returns an event of this data.
func Event(data string) Part { return Part{Raw: "data: " + data + "\n\n"} }

// Chunk returns a chunk whose first choice has the delta, given as JSON, and the
// finish, empty for none.
func Chunk(delta, finish string) Part {
	f := "null"
	if finish != "" {
		f = encode(finish)
	}
	return Event(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"test-model",` +
		`"choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":` + f + `}],"usage":null}`)
}

// Content returns a delta of text.
func Content(text string) Part { return Chunk(`{"content":`+encode(text)+`}`, "") }

// Reasoning returns a delta of thought, under DeepSeek's name for it.
func Reasoning(text string) Part {
	return Chunk(`{"content":null,"reasoning_content":`+encode(text)+`}`, "")
}

// CallDelta returns a delta of a tool call. A negative index is left out, and so
// are an empty id and name.
func CallDelta(index int, id, name, args string) Part {
	var b strings.Builder
	b.WriteString(`{"tool_calls":[{`)
	if index >= 0 {
		fmt.Fprintf(&b, `"index":%d,`, index)
	}
	if id != "" {
		fmt.Fprintf(&b, `"id":%s,"type":"function",`, encode(id))
	}
	b.WriteString(`"function":{`)
	if name != "" {
		fmt.Fprintf(&b, `"name":%s,`, encode(name))
	}
	fmt.Fprintf(&b, `"arguments":%s}}]}`, encode(args))
	return Chunk(b.String(), "")
}

// Finish returns the chunk that ends the message.
func Finish(reason string) Part { return Chunk(`{}`, reason) }

// Usage returns the chunk of the usage, which has no choices.
func Usage(in, out int) Part {
	return Event(fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion.chunk","model":"test-model","choices":[],`+
		`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`, in, out, in+out))
}

// Done returns the end of the stream.
func Done() Part { return Event("[DONE]") }

// Comments returns n keep-alives.
func Comments(n int) Part { return Part{Raw: strings.Repeat(": keep-alive\n\n", n)} }

// Hold returns a part that waits until c is closed or the caller has left; a nil
// c waits for the caller alone.
func Hold(c <-chan struct{}) Part {
	if c == nil {
		c = make(chan struct{})
	}
	return Part{Wait: c}
}

// Cut returns a part that breaks the connection off.
func Cut() Part { return Part{Cut: true} }

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil { // strings, numbers and maps of them encode
		panic(err)
	}
	return string(b)
}
