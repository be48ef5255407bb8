package openai

import "bytes"

// quick reads the chunk that nearly all are: one choice with a piece of text and
// nothing else of interest. It allocates nothing. ok is false for any other
// chunk, and for every one that is not certainly well-formed; those are for
// encoding/json, which also has the last word on what is an error.
func quick(data []byte) (text, model []byte, ok bool) {
	s := scanner{data: data}
	ok = s.object(func(key []byte) bool {
		switch string(key) {
		case "model":
			model, ok = s.plain()
			return ok
		case "choices":
			return s.take('[') && s.choice(&text) && s.take(']')
		case "id", "object", "system_fingerprint", "service_tier", "obfuscation", "provider":
			return s.null() || s.skipString()
		case "created":
			return s.digits()
		case "usage", "error":
			return s.null()
		}
		return false
	}) && s.end()
	return text, model, ok && text != nil
}

// scanner walks over JSON without copying it.
type scanner struct {
	data []byte
	pos  int
}

func (s *scanner) choice(text *[]byte) bool {
	return s.object(func(key []byte) bool {
		switch string(key) {
		case "index":
			return s.take('0')
		case "delta":
			return s.object(func(key []byte) (ok bool) {
				switch string(key) {
				case "content":
					*text, ok = s.plain()
					return ok
				case "role":
					return s.skipString()
				case "refusal", "reasoning", "reasoning_content", "tool_calls", "function_call":
					return s.null()
				}
				return false
			})
		case "finish_reason", "native_finish_reason", "logprobs", "error", "stop_reason", "token_ids":
			return s.null()
		}
		return false
	})
}

// object reads an object whose values are read by value.
func (s *scanner) object(value func(key []byte) bool) bool {
	if !s.take('{') {
		return false
	}
	if s.take('}') {
		return true
	}
	for {
		key, ok := s.plain()
		if !ok || !s.take(':') || !value(key) {
			return false
		}
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// take reads one sign, and white space before it.
func (s *scanner) take(c byte) bool {
	s.space()
	if s.pos == len(s.data) || s.data[s.pos] != c {
		return false
	}
	s.pos++
	return true
}

func (s *scanner) end() bool {
	s.space()
	return s.pos == len(s.data)
}

func (s *scanner) null() bool {
	s.space()
	if !bytes.HasPrefix(s.data[s.pos:], []byte("null")) {
		return false
	}
	s.pos += len("null")
	return true
}

// digits reads a whole number.
func (s *scanner) digits() bool {
	s.space()
	start := s.pos
	for s.pos < len(s.data) && '0' <= s.data[s.pos] && s.data[s.pos] <= '9' {
		s.pos++
	}
	n := s.pos - start
	return n == 1 || n > 1 && n <= 18 && s.data[start] != '0'
}

// plain reads a string of ASCII without escapes, which means what it says.
func (s *scanner) plain() ([]byte, bool) {
	if !s.take('"') {
		return nil, false
	}
	start := s.pos
	for ; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return s.data[start : s.pos-1 : s.pos-1], true
		case c == '\\' || c < ' ' || c > '~':
			return nil, false
		}
	}
	return nil, false
}

func (s *scanner) skipString() bool {
	_, ok := s.plain()
	return ok
}
