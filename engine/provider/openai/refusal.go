package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"trill/engine/provider"
)

// detail is what a server says about an error. Its message decides the class and
// goes no further: servers echo keys and prompts in it.
type detail struct {
	code, kind string
	number     int // code, where that is a number
	message    string
}

// refusal returns the error for an answer of another status than 2xx.
func refusal(status int, body []byte) *provider.Error {
	d := readDetail(body)
	return d.err(status, cmp.Or(http.StatusText(status), "refused"))
}

// embedded returns the error that a 200 answer or an event of it holds, nil if
// there is none.
func embedded(data []byte) *provider.Error {
	var outer struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &outer) != nil {
		return malformed("the server reports an error that cannot be read")
	}
	return fault(outer.Error)
}

// fault returns the error that an error field holds, nil if it is empty.
func fault(raw json.RawMessage) *provider.Error {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "false", `""`, "{}":
		return nil
	}
	d := readFields(raw)
	status := 0
	if d.number >= 400 && d.number <= 599 {
		status = d.number
	}
	return d.err(status, "the server reports an error in its answer")
}

func (d detail) err(status int, text string) *provider.Error {
	for _, name := range []string{d.code, d.kind} {
		if plainName(name) {
			text += " (" + name + ")"
			break
		}
	}
	return &provider.Error{Class: d.class(status), Status: status, Err: errors.New(text)}
}

// plainName reports whether a code can be shown: no key and no person's text
// looks like this.
func plainName(s string) bool {
	return s != "" && len(s) <= 40 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// readDetail reads the body of a refusal in any of the usual forms:
// {"error":{...}}, {"error":"..."}, the fields without a wrapping, or Google's
// list of one.
func readDetail(body []byte) detail {
	body = bytes.TrimSpace(body)
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var outer struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &outer) == nil && len(outer.Error) > 0 && string(outer.Error) != "null" {
		return readFields(outer.Error)
	}
	return readFields(body)
}

func readFields(raw json.RawMessage) detail {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return detail{message: text}
	}
	var f map[string]json.RawMessage
	if json.Unmarshal(raw, &f) != nil {
		return detail{}
	}
	word := func(key string) (s string) {
		_ = json.Unmarshal(f[key], &s) // another type is none
		return s
	}
	d := detail{code: word("code"), kind: cmp.Or(word("type"), word("status")), message: cmp.Or(word("message"), word("detail"))}
	var code float64
	if json.Unmarshal(f["code"], &code) == nil && code >= 100 && code <= 599 {
		d.number = int(code)
	} else if n, err := strconv.Atoi(d.code); err == nil {
		d.number = n
	}
	var meta struct {
		Raw string `json:"raw"` // a gateway's copy of what the model's server said
	}
	if json.Unmarshal(f["metadata"], &meta) == nil {
		d.message += " " + meta.Raw
	}
	return d
}

// class decides what can be done.
func (d detail) class(status int) provider.Class {
	switch status {
	case 0, 400, 413, 422, 500:
		if d.tooLong() {
			return provider.ClassContext
		}
	}
	switch {
	case d.is("insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance",
		"invalid_api_key", "authentication_error", "permission_error", "permission_denied", "account_deactivated"):
		return provider.ClassAuth
	case status == 0 && d.is("invalid_request_error", "invalid_request", "invalid_prompt", "model_not_found",
		"not_found_error", "content_filter", "content_policy_violation"):
		return provider.ClassRequest
	}
	switch status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden:
		return provider.ClassAuth
	case http.StatusRequestEntityTooLarge:
		return provider.ClassContext
	case 0, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return provider.ClassRetry
	}
	if status >= 500 {
		return provider.ClassRetry
	}
	return provider.ClassRequest
}

func (d detail) is(names ...string) bool {
	return slices.Contains(names, strings.ToLower(d.code)) || slices.Contains(names, strings.ToLower(d.kind))
}

// tooLong reports whether the prompt does not fit the model's window. There is
// no common code for it, so words count.
func (d detail) tooLong() bool {
	if d.is("context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded",
		"context_window_exceeded", "context_length_error", "request_too_large") {
		return true
	}
	m := strings.ToLower(d.message)
	for _, words := range [...][]string{
		{"context_length_exceeded"},                  // gateways that quote OpenAI
		{"maximum context length"},                   // OpenAI, vLLM, OpenRouter
		{"maximum prompt length"},                    // xAI
		{"available context size"},                   // llama.cpp
		{"context length", "exceed"},                 // Ollama, SGLang
		{"context length", "greater than"},           // LM Studio
		{"context window", "exceed"},                 // Together, LiteLLM
		{"context limit", "exceed"},                  // Anthropic's compatible API
		{"prompt is too long"},                       // Anthropic's compatible API
		{"input is too long"},                        // Bedrock gateways
		{"input token count", "exceeds the maximum"}, // Google
		{"reduce the length of the messages"},        // Groq
		{"too many tokens", "prompt"},                // Cohere, Mistral
		{"too large for model", "context"},           // Mistral
	} {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(m, w) }) {
			return true
		}
	}
	return false
}

// maxRetryAfter bounds what a server may ask for; the engine bounds it further.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads how long a server wants to be left alone: milliseconds from
// OpenAI, else seconds or a date. It is 0 when the server does not say.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil {
		return wait(ms / 1000)
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		return wait(s)
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	// The server's date goes by the server's clock.
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return wait(at.Sub(now).Seconds())
}

func wait(seconds float64) time.Duration {
	if math.IsNaN(seconds) || seconds <= 0 {
		return 0
	}
	return time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second))
}
