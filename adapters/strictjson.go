package adapters

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxJSONDepth is how deep objects and arrays may be nested.
const maxJSONDepth = 32

// fewKeys is up to how many names an object is searched by looking at each; a
// larger one gets a map, so that the check stays linear.
const fewKeys = 16

// DecodeJSON decodes data into v as encoding/json does, once it is certain that
// every reader understands data the same way: see [CheckJSON].
func DecodeJSON(data []byte, v any) error {
	if err := CheckJSON(data); err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// CheckJSON reports why data is not exactly one JSON value that all decoders
// agree on: bytes after the value, nesting deeper than 32, invalid UTF-8 or half
// a surrogate pair, and a name that occurs twice in one object. Two names that
// differ only by case count as one, because encoding/json stores both in the
// same field. It takes one pass and does not allocate for ordinary values.
func CheckJSON(data []byte) error {
	c := jsonChecker{data: data}
	c.space()
	if err := c.value(0); err != nil {
		return fmt.Errorf("json at byte %d: %w", c.pos, err)
	}
	c.space()
	if c.pos != len(data) {
		return fmt.Errorf("json at byte %d: %w", c.pos, errTrailing)
	}
	return nil
}

var (
	errTrailing  = errors.New("something follows the value")
	errEnd       = errors.New("unexpected end")
	errDepth     = errors.New("nested too deep")
	errDuplicate = errors.New("a name occurs twice in one object")
	errSyntax    = errors.New("unexpected character")
	errEncoding  = errors.New("not valid UTF-8")
	errSurrogate = errors.New("half a surrogate pair")
	errNumber    = errors.New("bad number")
	errEscape    = errors.New("bad escape")
)

type jsonChecker struct {
	data []byte
	pos  int
}

func (c *jsonChecker) space() {
	for c.pos < len(c.data) {
		switch c.data[c.pos] {
		case ' ', '\t', '\n', '\r':
			c.pos++
		default:
			return
		}
	}
}

// peek returns the next byte that is not white space, 0 at the end. No JSON
// token starts with a 0 byte.
func (c *jsonChecker) peek() byte {
	c.space()
	if c.pos == len(c.data) {
		return 0
	}
	return c.data[c.pos]
}

func (c *jsonChecker) unexpected() error {
	if c.pos >= len(c.data) {
		return errEnd
	}
	return errSyntax
}

func (c *jsonChecker) value(depth int) error {
	switch b := c.peek(); b {
	case '{':
		return c.object(depth+1, nil)
	case '[':
		return c.array(depth + 1)
	case '"':
		_, err := c.str()
		return err
	case 't':
		return c.literal("true")
	case 'f':
		return c.literal("false")
	case 'n':
		return c.literal("null")
	default:
		if b == '-' || '0' <= b && b <= '9' {
			return c.number()
		}
		return c.unexpected()
	}
}

func (c *jsonChecker) literal(word string) error {
	if len(c.data)-c.pos < len(word) {
		return errEnd
	}
	if string(c.data[c.pos:c.pos+len(word)]) != word {
		return errSyntax
	}
	c.pos += len(word)
	return nil
}

func (c *jsonChecker) array(depth int) error {
	if depth > maxJSONDepth {
		return errDepth
	}
	c.pos++
	if c.peek() == ']' {
		c.pos++
		return nil
	}
	for {
		if err := c.value(depth); err != nil {
			return err
		}
		switch c.peek() {
		case ',':
			c.pos++
		case ']':
			c.pos++
			return nil
		default:
			return c.unexpected()
		}
	}
}

// object reads an object. Its values are read by member, where there is one.
func (c *jsonChecker) object(depth int, member func(name) error) error {
	if depth > maxJSONDepth {
		return errDepth
	}
	c.pos++
	if c.peek() == '}' {
		c.pos++
		return nil
	}
	var names nameSet
	for {
		if c.peek() != '"' {
			return c.unexpected()
		}
		start := c.pos
		plain, err := c.str()
		if err != nil {
			return err
		}
		k := name{c.data[start+1 : c.pos-1], plain}
		if !names.add(k) {
			return errDuplicate
		}
		if c.peek() != ':' {
			return c.unexpected()
		}
		c.pos++
		if member != nil {
			err = member(k)
		} else {
			err = c.value(depth)
		}
		if err != nil {
			return err
		}
		switch c.peek() {
		case ',':
			c.pos++
		case '}':
			c.pos++
			return nil
		default:
			return c.unexpected()
		}
	}
}

// str reads a string. plain means that it is ASCII without escapes.
func (c *jsonChecker) str() (plain bool, err error) {
	plain = true
	c.pos++
	for c.pos < len(c.data) {
		switch b := c.data[c.pos]; {
		case b == '"':
			c.pos++
			return plain, nil
		case b == '\\':
			plain = false
			if err := c.escape(); err != nil {
				return false, err
			}
		case b < ' ':
			return false, errSyntax
		case b < utf8.RuneSelf:
			c.pos++
		default:
			plain = false
			r, n := utf8.DecodeRune(c.data[c.pos:])
			if r == utf8.RuneError && n == 1 {
				return false, errEncoding
			}
			c.pos += n
		}
	}
	return false, errEnd
}

func (c *jsonChecker) escape() error {
	if c.pos+1 >= len(c.data) {
		return errEnd
	}
	switch c.data[c.pos+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		c.pos += 2
		return nil
	case 'u':
		u, err := c.hex4()
		if err != nil || u < 0xD800 || u > 0xDFFF {
			return err
		}
		if u >= 0xDC00 || c.pos+1 >= len(c.data) || c.data[c.pos] != '\\' || c.data[c.pos+1] != 'u' {
			return errSurrogate
		}
		low, err := c.hex4()
		if err != nil {
			return err
		}
		if low < 0xDC00 || low > 0xDFFF {
			return errSurrogate
		}
		return nil
	default:
		return errEscape
	}
}

// hex4 reads \uXXXX.
func (c *jsonChecker) hex4() (rune, error) {
	if len(c.data)-c.pos < 6 {
		return 0, errEnd
	}
	var u rune
	for _, b := range c.data[c.pos+2 : c.pos+6] {
		switch {
		case '0' <= b && b <= '9':
			u = u<<4 | rune(b-'0')
		case 'a' <= b && b <= 'f':
			u = u<<4 | rune(b-'a'+10)
		case 'A' <= b && b <= 'F':
			u = u<<4 | rune(b-'A'+10)
		default:
			return 0, errEscape
		}
	}
	c.pos += 6
	return u, nil
}

func (c *jsonChecker) number() error {
	if c.data[c.pos] == '-' {
		c.pos++
	}
	switch {
	case c.pos == len(c.data):
		return errEnd
	case c.data[c.pos] == '0':
		c.pos++
	case !c.digits():
		return errNumber
	}
	if c.pos < len(c.data) && c.data[c.pos] == '.' {
		c.pos++
		if !c.digits() {
			return errNumber
		}
	}
	if c.pos < len(c.data) && (c.data[c.pos] == 'e' || c.data[c.pos] == 'E') {
		c.pos++
		if c.pos < len(c.data) && (c.data[c.pos] == '+' || c.data[c.pos] == '-') {
			c.pos++
		}
		if !c.digits() {
			return errNumber
		}
	}
	return nil
}

// digits reads at least one digit.
func (c *jsonChecker) digits() bool {
	start := c.pos
	for c.pos < len(c.data) && '0' <= c.data[c.pos] && c.data[c.pos] <= '9' {
		c.pos++
	}
	return c.pos > start
}

// nameSet holds the names of one object.
type nameSet struct {
	n    int
	few  [fewKeys]name
	many map[string]struct{}
}

type name struct {
	raw   []byte // between the quotes
	plain bool
}

// add reports whether the name is new.
func (s *nameSet) add(k name) bool {
	if s.many != nil {
		return s.addMany(k)
	}
	for i := range s.n {
		if s.few[i].same(k) {
			return false
		}
	}
	if s.n < fewKeys {
		s.few[s.n] = k
		s.n++
		return true
	}
	s.many = make(map[string]struct{}, 4*fewKeys)
	for _, few := range s.few {
		s.addMany(few)
	}
	return s.addMany(k)
}

func (s *nameSet) addMany(k name) bool {
	f := k.fold()
	if _, ok := s.many[f]; ok {
		return false
	}
	s.many[f] = struct{}{}
	return true
}

func (k name) same(other name) bool {
	if !k.plain || !other.plain {
		return k.fold() == other.fold()
	}
	if len(k.raw) != len(other.raw) {
		return false
	}
	for i, b := range other.raw {
		if lowerASCII(b) != lowerASCII(k.raw[i]) {
			return false
		}
	}
	return true
}

// text returns the name without escapes.
func (k name) text() []byte {
	if k.plain {
		return k.raw
	}
	return unescape(nil, k.raw)
}

// fold returns the name with each letter as the smallest of those that differ
// from it by case only: the Kelvin sign is a K. That is how encoding/json compares
// names with struct fields.
func (k name) fold() string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, string(k.text()))
}

func lowerASCII(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}
