package adapters

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

var errKind = errors.New("a value of another kind")

// JSONReader reads one JSON value in the pass that checks it as [CheckJSON] does:
// for bodies that come often. Every method reads the next value. After the first
// fault all of them return zero values, and End tells the fault, so until End was
// asked nothing that was read may be used.
//
// Unlike encoding/json it takes no name for a field that differs by case.
type JSONReader struct {
	c     jsonChecker
	depth int
	err   error
}

// NewJSONReader returns a reader at the start of data, which must not change while
// it is used.
func NewJSONReader(data []byte) *JSONReader {
	return &JSONReader{c: jsonChecker{data: data}}
}

// Kind tells what comes next without reading it: '{', '[', '"', 't', 'f', 'n', or
// '0' for a number; 0 is a fault.
func (r *JSONReader) Kind() byte {
	if r.err != nil {
		return 0
	}
	switch b := r.c.peek(); {
	case b == '{', b == '[', b == '"', b == 't', b == 'f', b == 'n':
		return b
	case b == '-', '0' <= b && b <= '9':
		return '0'
	}
	return 0
}

// Object calls field for each member of an object, with its name. field reads the
// member's value, or leaves it, and must not keep the name. null is an object
// without members.
func (r *JSONReader) Object(field func(name []byte)) {
	switch r.Kind() {
	case '{':
	case 'n':
		r.Raw()
		return
	default:
		r.unexpected()
		return
	}
	r.depth++
	r.fail(r.c.object(r.depth, func(name name) error {
		r.c.space()
		start := r.c.pos
		field(name.text())
		if r.c.pos == start {
			r.Raw()
		}
		return r.err
	}))
	r.depth--
}

// String reads a string; null is an empty one.
func (r *JSONReader) String() string {
	var short [128]byte // most need no more, and no second allocation then
	return string(unescape(short[:0], r.str()))
}

// Bytes is String for what is not kept: it may be a part of the data.
func (r *JSONReader) Bytes() []byte { return unescape(nil, r.str()) }

// str reads a string and returns what is between its quotes.
func (r *JSONReader) str() []byte {
	switch r.Kind() {
	case '"':
	case 'n':
		r.Raw()
		return nil
	default:
		r.unexpected()
		return nil
	}
	start := r.c.pos
	if _, err := r.c.str(); err != nil {
		r.fail(err)
		return nil
	}
	return r.c.data[start+1 : r.c.pos-1]
}

// Raw reads any value and returns the part of the data that it is.
func (r *JSONReader) Raw() []byte {
	if r.err != nil {
		return nil
	}
	r.c.space()
	start := r.c.pos
	if err := r.c.value(r.depth); err != nil {
		r.fail(err)
		return nil
	}
	return r.c.data[start:r.c.pos]
}

// End returns what was wrong with the data; something that follows the value is
// as well.
func (r *JSONReader) End() error {
	if r.err == nil {
		if r.c.space(); r.c.pos != len(r.c.data) {
			r.fail(errTrailing)
		}
	}
	return r.err
}

func (r *JSONReader) fail(err error) {
	if r.err == nil && err != nil {
		r.err = fmt.Errorf("json at byte %d: %w", r.c.pos, err)
	}
}

// unexpected is the fault of a value that is not of the kind to be read.
func (r *JSONReader) unexpected() {
	if r.Kind() != 0 {
		r.fail(errKind)
		return
	}
	r.fail(r.c.unexpected())
}

// unescape returns the text of a string that was found right, given what is
// between its quotes: that itself, when there are no escapes in it, or else text
// with it appended.
func unescape(text, raw []byte) []byte {
	i := bytes.IndexByte(raw, '\\')
	if i < 0 {
		return raw
	}
	text = slices.Grow(text, len(raw))
	c := jsonChecker{data: raw}
	for ; i >= 0; i = bytes.IndexByte(raw[c.pos:], '\\') {
		text = append(text, raw[c.pos:c.pos+i]...)
		c.pos += i
		switch b := raw[c.pos+1]; b {
		case 'u':
			u, _ := c.hex4()
			if utf16.IsSurrogate(u) {
				low, _ := c.hex4()
				u = utf16.DecodeRune(u, low)
			}
			text = utf8.AppendRune(text, u)
			continue
		case 'b':
			text = append(text, '\b')
		case 'f':
			text = append(text, '\f')
		case 'n':
			text = append(text, '\n')
		case 'r':
			text = append(text, '\r')
		case 't':
			text = append(text, '\t')
		default: // a quote, a slash or a backslash
			text = append(text, b)
		}
		c.pos += 2
	}
	return append(text, raw[c.pos:]...)
}
