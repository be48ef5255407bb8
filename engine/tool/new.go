package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
)

// New returns a tool whose arguments are an A. Where spec has no schema, it is
// inferred from A: names from json tags, descriptions from jsonschema tags,
// required what has no omitempty. It panics when A cannot be arguments, which is
// a fault of the program.
func New[A any](spec Spec, run func(context.Context, Env, A) (Result, error)) Tool {
	if spec.Schema == nil {
		s, err := jsonschema.For[A](nil)
		if err != nil {
			panic(fmt.Sprintf("tool %s: %v", spec.Name, err))
		}
		text, err := json.Marshal(s)
		if err != nil {
			panic(fmt.Sprintf("tool %s: %v", spec.Name, err))
		}
		spec.Schema = text
	}
	v, err := NewValidator(spec)
	if err != nil {
		panic(err.Error())
	}
	return &typed[A]{Validator: v, spec: spec, run: run}
}

type typed[A any] struct {
	*Validator
	spec Spec
	run  func(context.Context, Env, A) (Result, error)
}

func (t *typed[A]) Spec() Spec { return t.spec }

func (t *typed[A]) Run(ctx context.Context, env Env, args json.RawMessage) (Result, error) {
	var a A
	d := json.NewDecoder(bytes.NewReader(args))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return Failure(fmt.Sprintf("The arguments of %s cannot be read: %v.", t.spec.Name, err)), nil
	}
	return t.run(ctx, env, a)
}
