package openai_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"trill/engine/message"
	"trill/engine/provider"
	"trill/engine/provider/openai"
	"trill/engine/provider/openai/openaitest"
	"trill/engine/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "sk-secret-0123456789"

func server(t testing.TB) *openaitest.Server {
	t.Helper()
	s, err := openaitest.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// dial returns a provider for the server, and gives its connections back at the
// end of the test.
func dial(t testing.TB, url string, change ...func(*openai.Config)) *openai.Provider {
	t.Helper()
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.MaxIdleConnsPerHost = 64
	t.Cleanup(tr.CloseIdleConnections)
	conf := openai.Config{BaseURL: url, Key: key, Model: "gpt-5-mini", Client: &http.Client{Transport: tr}}
	for _, f := range change {
		f(&conf)
	}
	p, err := openai.New(conf)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ask(text string) provider.Request {
	return provider.Request{Messages: []message.Message{{Role: message.User, Text: text}}}
}

func TestKeepsTheProvidersPromises(t *testing.T) {
	providertest.Run(t, providertest.Harness{Start: func(t *testing.T, answers ...providertest.Answer) providertest.Peer {
		s := server(t)
		for _, a := range answers {
			s.Script(reply(a))
		}
		return providertest.Peer{Provider: dial(t, s.URL()), Bodies: func() (bodies [][]byte) {
			for _, r := range s.Requests() {
				bodies = append(bodies, r.Raw)
			}
			return bodies
		}}
	}})
}

// reply is what an OpenAI server sends for an answer of the suite.
func reply(a providertest.Answer) openaitest.Reply {
	fail := func(status int, code string) openaitest.Reply {
		return openaitest.Failure(status, code, "Incorrect API key provided: "+providertest.Secret)
	}
	switch a.Fault {
	case providertest.FaultBusy:
		return fail(429, "rate_limit_exceeded").WithHeader("Retry-After", strconv.Itoa(int(providertest.RetryAfter.Seconds())))
	case providertest.FaultOverloaded:
		return fail(529, "overloaded_error")
	case providertest.FaultDown:
		return fail(500, "server_error")
	case providertest.FaultKey:
		return fail(401, "invalid_api_key")
	case providertest.FaultQuota:
		return fail(429, "insufficient_quota")
	case providertest.FaultTooLong:
		return fail(400, "context_length_exceeded")
	case providertest.FaultRefused:
		return fail(400, "invalid_request_error")
	}
	var r openaitest.Reply
	for _, p := range a.Pieces {
		r = r.With(openaitest.Content(p))
	}
	switch a.Fault {
	case providertest.FaultBroken:
		return r.With(openaitest.Part{Raw: `data: {"choices":[{"delta":{"content":"42`}, openaitest.Cut())
	case providertest.FaultUnfinished:
		return r.With(openaitest.Done())
	case providertest.FaultGarbled:
		return r.With(openaitest.Event(`{"choices":[{"delta":`), openaitest.Finish("stop"), openaitest.Done())
	case providertest.FaultInStream:
		return r.With(openaitest.Event(`{"error":{"message":"` + providertest.Secret + `","type":"overloaded_error"}}`))
	case providertest.FaultHang:
		return r.With(openaitest.Hold(nil))
	}
	for i, c := range a.Calls {
		r = r.With(openaitest.CallDelta(i, c.ID, c.Tool, ""), openaitest.CallDelta(i, "", "", string(c.Args)))
	}
	finish := "stop"
	if a.Cut {
		finish = "length"
	} else if len(a.Calls) > 0 {
		finish = "tool_calls"
	}
	return r.With(openaitest.Finish(finish), openaitest.Usage(a.Usage.Input, a.Usage.Output), openaitest.Done())
}

// TestReadsWhatServersSend holds the streams that real servers are known for.
func TestReadsWhatServersSend(t *testing.T) {
	const usage = `"usage":{"prompt_tokens":90,"completion_tokens":30,"prompt_tokens_details":{"cached_tokens":64},"completion_tokens_details":{"reasoning_tokens":20}}`
	full := message.Usage{Input: 90, Output: 30, CachedInput: 64, Reasoning: 20}
	text, finish, done := openaitest.Content, openaitest.Finish, openaitest.Done()
	call := func(id, tool, args string) message.Call {
		return message.Call{ID: id, Tool: tool, Args: json.RawMessage(args)}
	}
	calls := func(deltas string) openaitest.Part { return openaitest.Chunk(`{"tool_calls":[`+deltas+`]}`, "") }
	hi := provider.Response{Text: "hi", Model: "test-model"}

	for name, tc := range map[string]struct {
		parts []openaitest.Part
		want  provider.Response
	}{
		"usage after the finish, without choices": {
			[]openaitest.Part{text("hi"), finish("stop"), openaitest.Event(`{` + usage + `}`), done},
			provider.Response{Text: "hi", Model: "test-model", Usage: full}},
		"usage before the finish, with null choices": {
			[]openaitest.Part{openaitest.Event(`{"choices":null,` + usage + `}`), text("hi"), finish("stop"), done},
			provider.Response{Text: "hi", Model: "test-model", Usage: full}},
		"usage beside the finish": {
			[]openaitest.Part{text("hi"), openaitest.Event(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],` + usage + `}`), done},
			provider.Response{Text: "hi", Model: "test-model", Usage: full}},
		"cached tokens by DeepSeek's name, and nonsense": {
			[]openaitest.Part{text("hi"), finish("stop"), openaitest.Event(`{"usage":{"prompt_tokens":50,"completion_tokens":-3,"prompt_cache_hit_tokens":40}}`), done},
			provider.Response{Text: "hi", Model: "test-model", Usage: message.Usage{Input: 50, CachedInput: 40}}},
		"thoughts are no part of the text": {
			[]openaitest.Part{openaitest.Reasoning("The person greets me."), openaitest.Chunk(`{"reasoning":"Hm."}`, ""), text("hi"), finish("stop"), done}, hi},
		"thoughts as parts of the content": {
			[]openaitest.Part{openaitest.Chunk(`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"Hm."}]},{"type":"text","text":"hi"}]}`, ""), finish("stop"), done}, hi},
		"a refusal is the model's answer": {
			[]openaitest.Part{openaitest.Chunk(`{"role":"assistant","content":"","refusal":null}`, ""), openaitest.Chunk(`{"refusal":"I cannot help "}`, ""), openaitest.Chunk(`{"refusal":"with that."}`, ""), finish("stop"), done},
			provider.Response{Text: "I cannot help with that.", Model: "test-model"}},
		"no end mark, only the end": {[]openaitest.Part{text("hi"), finish("stop")}, hi},
		"no line break at the very end": {
			[]openaitest.Part{text("hi"), {Raw: strings.TrimSpace(finish("stop").Raw)}}, hi},
		"the line breaks after the finish":   {[]openaitest.Part{text("hi"), finish("stop"), openaitest.Cut()}, hi},
		"a finish of the server's own":       {[]openaitest.Part{text("hi"), finish("eos"), done}, hi},
		"a finish spelt null":                {[]openaitest.Part{openaitest.Chunk(`{"content":"h"}`, "null"), text("i"), finish("stop"), done}, hi},
		"an error that is null":              {[]openaitest.Part{openaitest.Event(`{"error":null,"model":"test-model","choices":[{"delta":{"content":"hi"}}]}`), finish("stop"), done}, hi},
		"keep-alives and fields without use": {[]openaitest.Part{openaitest.Comments(2000), {Raw: "event: message\r\nid: 7\r\nretry: 10\r\n"}, text("hi"), openaitest.Comments(500), finish("stop"), done}, hi},
		"no space after data, and CRLF":      {[]openaitest.Part{{Raw: "data:" + `{"model":"test-model","choices":[{"delta":{"content":"hi"}}]}` + "\r\n\r\n"}, finish("stop"), done}, hi},
		"only the first choice counts":       {[]openaitest.Part{openaitest.Event(`{"model":"test-model","choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"length"},{"index":0,"delta":{"content":"hi"}}]}`), finish("stop"), done}, hi},
		"calls interleaved by index": {
			[]openaitest.Part{
				calls(`{"index":0,"id":"a","type":"function","function":{"name":"one","arguments":""}}`),
				calls(`{"index":1,"id":"b","type":"function","function":{"name":"two","arguments":""}}`),
				calls(`{"index":1,"function":{"arguments":"{\"n\""}},{"index":0,"function":{"arguments":"{\"m\":"}}`),
				calls(`{"index":0,"function":{"arguments":"1}"}}`), calls(`{"index":1,"function":{"arguments":":2}"}}`),
				finish("tool_calls"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("a", "one", `{"m":1}`), call("b", "two", `{"n":2}`)}}},
		"calls without index, by id, finished with stop": {
			[]openaitest.Part{
				calls(`{"id":"a","function":{"name":"one","arguments":"{\"m\":"}}`), calls(`{"id":"b","function":{"name":"two","arguments":"{}"}}`),
				calls(`{"id":"a","function":{"arguments":"1}"}}`), finish("stop"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("a", "one", `{"m":1}`), call("b", "two", `{}`)}}},
		"calls without index, by order": {
			[]openaitest.Part{
				calls(`{"id":"a","function":{"name":"one","arguments":"{"}}`), calls(`{"function":{"arguments":"}"}}`),
				calls(`{"id":"b","function":{"name":"one","arguments":"{\"x\":"}}`), calls(`{"function":{"arguments":"2}"}}`),
				finish("tool_calls"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("a", "one", `{}`), call("b", "one", `{"x":2}`)}}},
		"calls without index or id, by position": {
			[]openaitest.Part{
				calls(`{"function":{"name":"one","arguments":"{\"m\":"}},{"function":{"name":"one","arguments":"{\"m\":"}}`),
				calls(`{"function":{"arguments":"1}"}},{"function":{"arguments":"2}"}}`), finish("tool_calls"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("(new)", "one", `{"m":1}`), call("(new)", "one", `{"m":2}`)}}},
		"every call at index 0": {
			[]openaitest.Part{
				calls(`{"index":0,"id":"a","function":{"name":"one","arguments":"{}"}}`), calls(`{"index":0,"id":"b","function":{"name":"one","arguments":"{\"x\":1"}}`),
				calls(`{"index":0,"function":{"arguments":"}"}}`), finish("tool_calls"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("a", "one", `{}`), call("b", "one", `{"x":1}`)}}},
		"another id with every piece, and the name again": {
			[]openaitest.Part{
				calls(`{"index":0,"id":"a","function":{"name":"one","arguments":"{"}}`), calls(`{"index":0,"id":"zz","function":{"name":null,"arguments":"}"}}`),
				calls(`{"index":0,"id":"a","function":{"name":"one","arguments":""}}`), finish("tool_calls"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("a", "one", `{}`)}}},
		"the same id twice": {
			[]openaitest.Part{
				calls(`{"index":0,"id":"a","function":{"name":"one","arguments":"{}"}},{"index":1,"id":"a","function":{"name":"two","arguments":"{}"}}`), finish("tool_calls"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("a", "one", `{}`), call("(new)", "two", `{}`)}}},
		"an id that nobody can print": {
			[]openaitest.Part{calls(`{"index":0,"id":"a\u001b[31m","function":{"name":"one","arguments":"{}"}}`), finish("tool_calls"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("(new)", "one", `{}`)}}},
		"arguments as an object, as nothing, and as null": {
			[]openaitest.Part{
				calls(`{"index":0,"id":"a","function":{"name":"one","arguments":{"m":[1]}}},{"index":1,"id":"b","function":{"name":"two"}},{"index":2,"id":"c","function":{"name":"two","arguments":null}}`), finish("tool_calls"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("a", "one", `{"m":[1]}`), call("b", "two", `{}`), call("c", "two", `{}`)}}},
		"arguments that are no JSON are kept": {
			[]openaitest.Part{calls(`{"index":0,"id":"a","function":{"name":"one","arguments":"{\"path\": "}}`), finish("tool_calls"), done},
			provider.Response{Model: "test-model", Calls: []message.Call{call("a", "one", `{"path": `)}}},
		"a call that was cut": {
			[]openaitest.Part{calls(`{"index":0,"id":"a","function":{"name":"one","arguments":"{\"pa"}}`), finish("length"), done},
			provider.Response{Model: "test-model", Cut: true, Calls: []message.Call{call("a", "one", `{"pa`)}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := server(t)
			s.Script(openaitest.Stream(tc.parts...))
			got, err := dial(t, s.URL()).Stream(t.Context(), ask("hello"), nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range got.Calls {
				if strings.HasPrefix(got.Calls[i].ID, "call_") && len(got.Calls[i].ID) > 20 {
					got.Calls[i].ID = "(new)"
				}
			}
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("response (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnderstandsRefusals(t *testing.T) {
	fail := openaitest.Failure
	raw := func(status int, kind, body string) openaitest.Reply {
		return openaitest.Reply{Status: status, Parts: []openaitest.Part{{Raw: body}}}.WithHeader("Content-Type", kind)
	}
	stream := func(events ...string) openaitest.Reply {
		r := openaitest.Stream(openaitest.Content("Well, "))
		for _, e := range events {
			r = r.With(openaitest.Event(e))
		}
		return r
	}
	tooLong := func(status int, words string) openaitest.Reply { return fail(status, "invalid_request_error", words) }
	const (
		retry   = provider.ClassRetry
		context = provider.ClassContext
		auth    = provider.ClassAuth
		request = provider.ClassRequest
	)
	for name, tc := range map[string]struct {
		reply openaitest.Reply
		class provider.Class
		want  string // the error's text
	}{
		"wrong key":                {fail(401, "invalid_api_key", "Incorrect API key: "+key), auth, "model: 401: Unauthorized (invalid_api_key)"},
		"no credit":                {fail(402, "", ""), auth, "model: 402: Payment Required"},
		"not for you":              {fail(403, "unsupported_country", ""), auth, "model: 403: Forbidden (unsupported_country)"},
		"wrong key, by Google":     {fail(400, "invalid_api_key", ""), auth, "model: 400: Bad Request (invalid_api_key)"},
		"quota":                    {fail(429, "insufficient_quota", ""), auth, "model: 429: Too Many Requests (insufficient_quota)"},
		"rate":                     {fail(429, "rate_limit_exceeded", ""), retry, "model: 429: Too Many Requests (rate_limit_exceeded)"},
		"timeout":                  {fail(408, "", ""), retry, "model: 408: Request Timeout"},
		"conflict":                 {fail(409, "", ""), retry, "model: 409: Conflict"},
		"too early":                {fail(425, "", ""), retry, "model: 425: Too Early"},
		"down":                     {fail(500, "server_error", ""), retry, "model: 500: Internal Server Error (server_error)"},
		"not there":                {fail(503, "", ""), retry, "model: 503: Service Unavailable"},
		"overloaded":               {fail(529, "overloaded_error", ""), retry, "model: 529: refused (overloaded_error)"},
		"proxy's page":             {openaitest.Page(502), retry, "model: 502: Bad Gateway"},
		"page instead of a stream": {openaitest.Page(200), retry, "model: 200: the server answered with a web page: check base_url"},
		"unknown model":            {fail(404, "model_not_found", ""), request, "model: 404: Not Found (model_not_found)"},
		"bad request":              {fail(400, "invalid_request_error", "tools[0] is wrong"), request, "model: 400: Bad Request (invalid_request_error)"},
		"a code that may be a key": {fail(400, "sk-abc123", ""), request, "model: 400: Bad Request"},
		"a code that is too long":  {fail(400, strings.Repeat("a", 41), ""), request, "model: 400: Bad Request"},
		"no body":                  {openaitest.Reply{Status: 400}, request, "model: 400: Bad Request"},
		"huge body":                {raw(500, "text/plain", strings.Repeat(key, 100_000)), retry, "model: 500: Internal Server Error"},
		"deep body":                {raw(400, "application/json", strings.Repeat(`{"error":`, 5000)), request, "model: 400: Bad Request"},

		"too long, OpenAI":                    {fail(400, "context_length_exceeded", ""), context, "model: 400: Bad Request (context_length_exceeded)"},
		"too long, vLLM":                      {raw(400, "application/json", `{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000","type":"BadRequestError","param":null,"code":400}`), context, "model: 400: Bad Request"},
		"too long, llama.cpp":                 {raw(400, "application/json", `{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error"}}`), context, "model: 400: Bad Request (exceed_context_size_error)"},
		"too long, Anthropic":                 {tooLong(400, "prompt is too long: 210000 tokens > 200000 maximum"), context, "model: 400: Bad Request (invalid_request_error)"},
		"too long, Google":                    {raw(400, "application/json", `[{"error":{"code":400,"message":"The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]`), context, "model: 400: Bad Request"},
		"too long, Groq":                      {tooLong(400, "Please reduce the length of the messages or completion."), context, "model: 400: Bad Request (invalid_request_error)"},
		"too long, xAI":                       {raw(400, "application/json", `{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is 131072 but the request contains 200000 tokens."}`), context, "model: 400: Bad Request"},
		"too long, LM Studio":                 {raw(400, "application/json", `{"error":"Trying to keep the first 5000 tokens when context the overflows. The number of tokens is greater than the context length."}`), context, "model: 400: Bad Request"},
		"too long, by gateway":                {raw(400, "application/json", `{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"code\":\"context_length_exceeded\"}}"}}}`), context, "model: 400: Bad Request"},
		"too long, in bytes":                  {raw(413, "text/plain", "no"), context, "model: 413: Request Entity Too Large"},
		"too long, in a stream":               {stream(`{"error":{"message":"maximum context length is 10","code":400}}`), context, "model: 400: the server reports an error in its answer"},
		"error instead of a stream, with 200": {raw(200, "application/json", `{"error":{"message":"x","type":"server_error"}}`), retry, "model: the server reports an error in its answer (server_error)"},
		"a whole answer instead of a stream":  {raw(200, "application/json", `{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}`), request, "model: 200: the server does not stream its answer"},

		"error in a stream":                  {stream(`{"error":{"message":"x","code":"server_error"}}`), retry, "model: the server reports an error in its answer (server_error)"},
		"error in a stream, a string":        {stream(`{"error":"model requires more memory"}`), retry, "model: the server reports an error in its answer"},
		"error in a stream, unreadable":      {stream(`{"error":{"message":`), retry, "model: the server reports an error that cannot be read"},
		"error in a stream, of the key":      {stream(`{"error":{"message":"x","code":401}}`), auth, "model: 401: the server reports an error in its answer"},
		"error in a stream, of the request":  {stream(`{"error":{"message":"x","type":"invalid_request_error"}}`), request, "model: the server reports an error in its answer (invalid_request_error)"},
		"error beside choices":               {stream(`{"id":"x","error":{"code":"rate_limit_exceeded","message":"x"},"choices":[{"delta":{"content":""},"finish_reason":"error"}]}`), retry, "model: the server reports an error in its answer (rate_limit_exceeded)"},
		"error inside a choice":              {stream(`{"choices":[{"delta":{},"finish_reason":"error","error":{"code":502,"message":"x"}}]}`), retry, "model: 502: the server reports an error in its answer"},
		"error after keep-alives":            {openaitest.Stream(openaitest.Comments(3), openaitest.Event(`{"error":{"message":"x","code":429}}`)), retry, "model: 429: the server reports an error in its answer"},
		"error and then silence":             {openaitest.Stream(openaitest.Part{Raw: `data: {"error":{"message":"x","code":503}}` + "\n"}, openaitest.Hold(nil)), retry, "model: 503: the server reports an error in its answer"},
		"error after the finish":             {openaitest.Stream(openaitest.Finish("stop"), openaitest.Event(`{"error":{"message":"x","code":500}}`)), retry, "model: 500: the server reports an error in its answer"},
		"a finish that is an error":          {openaitest.Stream(openaitest.Content("x"), openaitest.Finish("insufficient_system_resource"), openaitest.Done()), retry, "model: the server gave up on its answer (insufficient_system_resource)"},
		"content filter":                     {openaitest.Stream(openaitest.Content("x"), openaitest.Finish("content_filter"), openaitest.Done()), request, "model: the server's content filter stopped the answer"},
		"a stream of nothing":                {openaitest.Stream(), retry, "model: the stream ended before the answer did"},
		"an event that is a list":            {stream(`[]`), retry, "model: an event of the answer is malformed"},
		"a call without a name":              {openaitest.Stream(openaitest.CallDelta(0, "a", "", "{}"), openaitest.Finish("tool_calls"), openaitest.Done()), retry, "model: a tool call has no name"},
		"a call with an endless name":        {openaitest.Stream(openaitest.CallDelta(0, "a", strings.Repeat("x", 300), "{}")), retry, "model: a tool call's name is longer than 256 bytes"},
		"broken off in the middle of a call": {openaitest.Stream(openaitest.CallDelta(0, "a", "one", `{"x":`), openaitest.Part{Raw: `data: {"choi`}, openaitest.Cut()), retry, "model: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			s := server(t)
			s.Script(tc.reply)
			_, err := dial(t, s.URL()).Stream(t.Context(), ask("hello"), func(string) {})
			if err == nil {
				t.Fatal("no error")
			}
			if got := provider.ClassOf(err); got != tc.class {
				t.Errorf("class %q, want %q", got, tc.class)
			}
			if err.Error() != tc.want {
				t.Errorf("error %q, want %q", err, tc.want)
			}
		})
	}
}

func TestAnErrorTellsWhatItCost(t *testing.T) {
	s := server(t)
	s.Script(openaitest.Stream(openaitest.Usage(800, 20), openaitest.Content("x"), openaitest.Done()))
	_, err := dial(t, s.URL()).Stream(t.Context(), ask("hello"), nil)
	e, ok := errors.AsType[*provider.Error](err)
	if want := (message.Usage{Input: 800, Output: 20}); !ok || e.Usage != want {
		t.Errorf("got %+v, want usage %+v", err, want)
	}
}

func TestBigAnswersAreBounded(t *testing.T) {
	mega := strings.Repeat("a", 1<<20)
	for name, tc := range map[string]struct {
		reply openaitest.Reply
		want  string // of the error; empty for none
	}{
		"256 calls": {manyCalls(256), ""},
		"257 calls": {manyCalls(257), "model: the answer has more than 256 tool calls"},
		"9 MB of arguments": {openaitest.Stream(openaitest.CallDelta(0, "a", "one", `"`+strings.Repeat(mega, 9)+`"`),
			openaitest.Finish("tool_calls"), openaitest.Done()), ""},
		"11 MB of arguments in pieces": {repeat(openaitest.CallDelta(0, "a", "one", mega), 11), "model: the arguments of the answer's tool calls are larger than 10 MB"},
		"11 MB of text":                {repeat(openaitest.Content(mega), 11), "model: the answer's text is larger than 10 MB"},
		"17 MB in one event":           {openaitest.Stream(openaitest.Content(strings.Repeat(mega, 17))), "model: one event of the answer is larger than 16 MB"},
		"65 MB of keep-alives":         {repeat(openaitest.Part{Raw: ": " + mega + "\n"}, 65), "model: the answer is larger than 64 MB"},
	} {
		t.Run(name, func(t *testing.T) {
			s := server(t)
			s.Script(tc.reply)
			resp, err := dial(t, s.URL()).Stream(t.Context(), ask("hello"), nil)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("got %v", err)
			case tc.want == "" && len(resp.Calls) == 0:
				t.Error("the calls are lost")
			case tc.want != "" && (err == nil || err.Error() != tc.want || provider.ClassOf(err) != provider.ClassRetry):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func manyCalls(n int) openaitest.Reply {
	var b strings.Builder
	for i := range n {
		b.WriteString(openaitest.CallDelta(i, fmt.Sprintf("c%d", i), "one", "{}").Raw)
	}
	return openaitest.Stream(openaitest.Part{Raw: b.String()}, openaitest.Finish("tool_calls"), openaitest.Done())
}

func repeat(p openaitest.Part, n int) openaitest.Reply {
	var r openaitest.Reply
	for range n {
		r = r.With(p)
	}
	return r
}

func TestSendsWhatServersAccept(t *testing.T) {
	// Names from o1 to gpt-6, which go-openai checks by lists of its own.
	for _, model := range []string{"gpt-5-mini", "o1", "o3-mini", "o4-mini", "gpt-6-sol", "gpt-6-astra", "text-davinci-003", "llama-3"} {
		t.Run(model, func(t *testing.T) {
			s := server(t)
			p := dial(t, s.URL(), func(c *openai.Config) { c.Model, c.MaxOutput = model, 4000 })
			if _, err := p.Stream(t.Context(), providertest.Ask(), nil); err != nil {
				t.Fatal(err)
			}
			r := s.Requests()[0]
			if r.Model != model || r.MaxTokens != 0 || r.MaxCompletionTokens != 4000 || !r.Stream || !r.StreamOptions.IncludeUsage {
				t.Errorf("sent %s", r.Raw)
			}
			if got, want := r.Header.Get("Authorization"), "Bearer "+key; got != want {
				t.Errorf("Authorization: %q, want %q", got, want)
			}
		})
	}
}

func TestRequestOnTheLine(t *testing.T) {
	s := server(t)
	req := providertest.Ask()
	req.Messages = append(req.Messages, message.Message{Role: message.Assistant}, message.Message{Role: message.User})
	if _, err := dial(t, s.URL()).Stream(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	const want = `{
  "model": "gpt-5-mini",
  "messages": [
    {
      "role": "system",
      "content": "You are a test. <b>&\u2028"
    },
    {
      "role": "user",
      "content": "From Alice (users/alice):\n\nhello"
    },
    {
      "role": "assistant",
      "content": null,
      "tool_calls": [
        {
          "id": "c1",
          "type": "function",
          "function": {
            "name": "read_file",
            "arguments": "{\"path\":\"a.txt\"}"
          }
        },
        {
          "id": "c2",
          "type": "function",
          "function": {
            "name": "read_file",
            "arguments": "{\"invalid_arguments\":\"{\\\"path\\\":\"}"
          }
        }
      ]
    },
    {
      "role": "tool",
      "content": "(no output)",
      "tool_call_id": "c1"
    },
    {
      "role": "tool",
      "content": "Failed: no such file",
      "tool_call_id": "c2"
    },
    {
      "role": "assistant",
      "content": "Nothing there."
    },
    {
      "role": "user",
      "content": "and now?"
    },
    {
      "role": "assistant",
      "content": "(no text)"
    },
    {
      "role": "user",
      "content": "(no text)"
    }
  ],
  "tools": [
    {
      "type": "function",
      "function": {
        "name": "read_file",
        "description": "Reads.",
        "parameters": {
          "type": "object",
          "properties": {
            "path": {
              "type": "string"
            }
          },
          "required": [
            "path"
          ]
        }
      }
    },
    {
      "type": "function",
      "function": {
        "name": "stop",
        "parameters": {
          "type": "object",
          "properties": {}
        }
      }
    }
  ],
  "stream": true,
  "stream_options": {
    "include_usage": true
  }
}`
	var got bytes.Buffer
	if err := json.Indent(&got, s.Requests()[0].Raw, "", "  "); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestRefusesWhatCannotBeSent(t *testing.T) {
	p := dial(t, "http://127.0.0.1:1/v1")
	for name, req := range map[string]provider.Request{
		"a role that is none":      {Messages: []message.Message{{Role: "robot"}}},
		"a schema that is no JSON": {Tools: []provider.Tool{{Name: "x", Schema: json.RawMessage(`{`)}}},
	} {
		if _, err := p.Stream(t.Context(), req, nil); provider.ClassOf(err) != provider.ClassRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	s := server(t)
	p := dial(t, s.URL())
	s.Script(openaitest.Text("one", 2), openaitest.Failure(500, "server_error", "x"), openaitest.Page(502),
		openaitest.Stream(openaitest.Content("x"), openaitest.Done()), openaitest.Text("two", 2))
	for range 5 {
		_, _ = p.Stream(t.Context(), ask("hello"), nil)
	}
	from := map[string]int{}
	for _, r := range s.Requests() {
		from[r.Remote]++
	}
	// Only the answer without a finish is left before its end.
	if len(s.Requests()) != 5 || len(from) > 2 {
		t.Errorf("connections %v for 5 requests", from)
	}
}

func TestTheEndOfTheStreamIsReadToo(t *testing.T) {
	// The end comes apart from the mark that announces it, as it does on a real
	// line: leaving at the mark would break every connection off.
	s := server(t)
	p := dial(t, s.URL())
	from := map[string]bool{}
	const calls = 8
	for range calls {
		end := make(chan struct{})
		s.Script(openaitest.Stream(openaitest.Content("x"), openaitest.Finish("stop"), openaitest.Done(), openaitest.Hold(end), openaitest.Comments(1)))
		if _, err := p.Stream(t.Context(), ask("hello"), func(string) { close(end) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range s.Requests() {
		from[r.Remote] = true
	}
	if len(from) > calls/2 {
		t.Errorf("%d connections for %d calls", len(from), calls)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	thief := server(t)
	for _, status := range []int{301, 302, 307, 308} {
		s := server(t)
		r := openaitest.Reply{Status: status}.WithHeader("Location", thief.URL()+"/chat/completions")
		s.Script(r, r)
		p := dial(t, s.URL())
		_, err := p.Stream(t.Context(), ask("hello"), nil)
		if provider.ClassOf(err) != provider.ClassRequest || !strings.Contains(err.Error(), "set base_url") {
			t.Errorf("%d: %v", status, err)
		}
		if _, err := p.Models(t.Context()); provider.ClassOf(err) != provider.ClassRequest {
			t.Errorf("%d for models: %v", status, err)
		}
	}
	if n := thief.Served(); n != 0 {
		t.Errorf("%d requests were taken elsewhere", n)
	}
}

func TestNobodyListens(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	_, err := dial(t, gone.URL+"/secret-path").Stream(t.Context(), ask("hello"), nil)
	e, ok := errors.AsType[*provider.Error](err)
	if !ok || e.Class != provider.ClassRetry || e.Status != 0 {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "secret-path") {
		t.Errorf("the error is %q", err)
	}
}

func TestModels(t *testing.T) {
	s := server(t)
	s.SetModels("zeta", "alpha", "zeta", "")
	p := dial(t, s.URL())
	got, err := p.Models(t.Context())
	if diff := cmp.Diff([]string{"alpha", "zeta"}, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if r := s.Requests()[0]; r.Header.Get("Authorization") != "Bearer "+key || len(r.Raw) != 0 {
		t.Errorf("asked with %+v", r)
	}
	s.Script(openaitest.Failure(401, "invalid_api_key", key), openaitest.Stream(openaitest.Part{Raw: "nonsense " + key}), openaitest.Page(200))
	for _, want := range []provider.Class{provider.ClassAuth, provider.ClassRetry, provider.ClassRetry} {
		if _, err := p.Models(t.Context()); err == nil || provider.ClassOf(err) != want || strings.Contains(err.Error(), key) {
			t.Errorf("got %v, want class %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Models(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestConfigFaultsNameTheirKeys(t *testing.T) {
	for _, tc := range []struct {
		conf openai.Config
		want []string
	}{
		{openai.Config{}, []string{"model: "}},
		{openai.Config{Model: "m", BaseURL: "api.openai.com/v1"}, []string{"base_url: "}},
		{openai.Config{Model: "m", BaseURL: "ftp://x"}, []string{"base_url: "}},
		{openai.Config{Model: "m", BaseURL: "https://u:" + key + "@x/v1"}, []string{"base_url: "}},
		{openai.Config{Model: "m", BaseURL: "https://x/v1?key=" + key}, []string{"base_url: "}},
		{openai.Config{Model: "m", BaseURL: "https://x/%zz" + key}, []string{"base_url: "}},
		{openai.Config{Model: "m", Key: key + "\n"}, []string{"api_key: "}},
		{openai.Config{Model: "m", ContextWindow: -1, MaxOutput: -1, FirstByte: -1, Idle: -1, Total: -1},
			[]string{"context_window: ", "max_output: ", "first_byte: ", "idle: ", "total: "}},
	} {
		_, err := openai.New(tc.conf)
		if err == nil {
			t.Errorf("%v was taken", tc.conf)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not name %q", err, want)
			}
		}
		if strings.Contains(err.Error(), key) {
			t.Errorf("%q shows the key", err)
		}
	}
	if _, err := openai.New(openai.Config{Model: "m"}); err != nil {
		t.Errorf("the least config: %v", err)
	}
}

func TestTheKeyIsNeverPrinted(t *testing.T) {
	conf := openai.Config{BaseURL: "https://u:" + key + "@h/v1?k=" + key, Key: key, Model: "m"}
	p, err := openai.New(openai.Config{Key: key, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, log := range []*slog.Logger{slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil))} {
		log.Info("x", "conf", conf, "ptr", &conf, "p", p)
	}
	for _, v := range []any{conf, &conf, p, *p, struct{ C openai.Config }{conf}} {
		fmt.Fprintf(&out, "%v %+v %#v %s\n", v, v, v, v)
		b, _ := json.Marshal(v)
		out.Write(b)
	}
	if strings.Contains(out.String(), key) {
		t.Errorf("the key is shown:\n%s", out.String())
	}
}

// line is a transport whose answers are pipes, so that a test in a bubble of
// fake time can be the server.
type line func(*http.Request) (*http.Response, error)

func (f line) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// piped is a stream whose server is f, and how long it took.
func piped(t *testing.T, f func(ctx context.Context, w io.Writer), onText func(string)) (time.Duration, *provider.Response, error) {
	t.Helper()
	done := make(chan struct{})
	p, err := openai.New(openai.Config{Model: "m", BaseURL: "http://h/v1", Client: &http.Client{Transport: line(func(r *http.Request) (*http.Response, error) {
		pr, pw := io.Pipe()
		context.AfterFunc(r.Context(), func() { pr.CloseWithError(r.Context().Err()) })
		go func() {
			defer close(done)
			f(r.Context(), pw)
			pw.Close()
		}()
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: pr}, nil
	})}})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	resp, err := p.Stream(t.Context(), ask("hello"), onText)
	took := time.Since(start)
	<-done
	return took, resp, err
}

func TestStalls(t *testing.T) {
	say := func(w io.Writer, parts ...openaitest.Part) {
		for _, p := range parts {
			_, _ = io.WriteString(w, p.Raw)
		}
	}
	hello := openaitest.Content("hello")
	for name, tc := range map[string]struct {
		server func(ctx context.Context, w io.Writer)
		want   string // of the error
		after  time.Duration
	}{
		"nothing at all": {func(ctx context.Context, w io.Writer) { <-ctx.Done() }, "model: the server fell silent", time.Minute},
		"silence in the middle": {func(ctx context.Context, w io.Writer) {
			time.Sleep(30 * time.Second)
			say(w, hello)
			<-ctx.Done()
		}, "model: the server fell silent", 90 * time.Second},
		"a slow start and one token every 50 seconds": {func(ctx context.Context, w io.Writer) {
			time.Sleep(30 * time.Second)
			for range 6 {
				say(w, hello)
				time.Sleep(50 * time.Second)
			}
			say(w, openaitest.Finish("stop"), openaitest.Done())
		}, "", 330 * time.Second},
		"keep-alives are a sign of life": {func(ctx context.Context, w io.Writer) {
			for range 8 {
				time.Sleep(55 * time.Second)
				say(w, openaitest.Comments(1))
			}
			say(w, hello, openaitest.Finish("stop"), openaitest.Done())
		}, "", 440 * time.Second},
		"but not for ever": {func(ctx context.Context, w io.Writer) {
			for ctx.Err() == nil {
				time.Sleep(30 * time.Second)
				say(w, openaitest.Comments(1))
			}
		}, "model: the call took too long", 10 * time.Minute},
		"a complete message does not wait long for its usage": {func(ctx context.Context, w io.Writer) {
			say(w, hello, openaitest.Finish("stop"))
			<-ctx.Done()
		}, "", 5 * time.Second},
		"nor for the connection's end": {func(ctx context.Context, w io.Writer) {
			say(w, hello, openaitest.Finish("stop"), openaitest.Usage(1, 1), openaitest.Done())
			<-ctx.Done()
		}, "", 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took, resp, err := piped(t, tc.server, nil)
				if took != tc.after {
					t.Errorf("it took %v, want %v", took, tc.after)
				}
				switch {
				case tc.want == "" && (err != nil || !strings.HasPrefix(resp.Text, "hello")):
					t.Errorf("got %v, %v", resp, err)
				case tc.want != "" && (err == nil || err.Error() != tc.want || provider.ClassOf(err) != provider.ClassRetry):
					t.Errorf("got %v, want %q", err, tc.want)
				}
			})
		})
	}
}

func TestASlowReaderIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, resp, err := piped(t, func(_ context.Context, w io.Writer) {
			for _, p := range []openaitest.Part{openaitest.Content("a"), openaitest.Content("b"), openaitest.Finish("stop"), openaitest.Done()} {
				_, _ = io.WriteString(w, p.Raw)
			}
		}, func(string) { time.Sleep(4 * time.Minute) })
		if err != nil || resp.Text != "ab" {
			t.Errorf("got %v, %v", resp, err)
		}
	})
}

func TestLeavingFreesTheServer(t *testing.T) {
	gone := make(chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, openaitest.Content("x").Raw)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(io.Discard, r.Body) // the server notices a caller's end only then
		<-r.Context().Done()
		close(gone)
	}))
	defer front.Close()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := dial(t, front.URL).Stream(ctx, ask("hello"), func(string) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-gone
}
