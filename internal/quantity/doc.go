// Package quantity is the only place where a quantity of somebody else's object is computed with, or becomes a number.
//
// A resource.Quantity takes any exponent of 32 bits, and most of what it does writes out all of the digits: to compare 1e30000000 with
// anything takes 20 s, to add 1 to 1e999999999 hours, which nothing ends. An API server stores such a quantity for whoever may create a pod or a
// claim. What is vast is here taken for something that counts the same and has few digits, before anything else is done.
//
// It does not parse: ParseQuantity writes out digits too, where an exponent is negative or a mantissa long. What comes from an API server that
// server has parsed; what comes from others is judged before, by package manifest.
package quantity
